#include "tutorials/common/output.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed(const char *path, struct error *err) {
    return error_set(err, "%s: cannot write: %s", path, strerror(errno));
}

/* A new file in the folder of o->place, with the rights of the one that it replaces. */
static FILE *open_beside(struct output *o, const struct stat *old) {
    mode_t mask = umask(0);
    umask(mask);
    if (asprintf(&o->beside, "%s.XXXXXX", o->place) < 0) {
        o->beside = NULL;
        return NULL;
    }
    int fd = old && access(o->place, W_OK) ? -1 : mkstemp(o->beside);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "wb");
    if (file && !fchmod(fd, old ? old->st_mode & 0777 : 0666 & ~mask))
        return file;
    int why = errno;
    if (fd >= 0)
        unlink(o->beside);
    if (file)
        fclose(file);
    free(o->beside);
    o->beside = NULL;
    errno = why;
    return NULL;
}

int output_open(struct output *o, const char *path, struct error *err) {
    struct stat old;
    bool exists = !stat(path, &old);
    *o = (struct output){.path = path, .place = exists ? realpath(path, NULL) : strdup(path)};
    if (o->place)
        o->file = exists && !S_ISREG(old.st_mode) ? fopen(path, "wb")
                                                  : open_beside(o, exists ? &old : NULL);
    if (o->file)
        return 0;
    failed(path, err);
    output_discard(o);
    return -1;
}

int output_check(const char *path, struct error *err) {
    struct stat old;
    struct output o;
    bool exists = path && !stat(path, &old);
    if (!path || (exists && !S_ISREG(old.st_mode) && !S_ISDIR(old.st_mode)))
        return 0; /* opening a pipe would already be heard at its other end */
    if (output_open(&o, path, err))
        return -1;
    output_discard(&o);
    return 0;
}

int output_keep(struct output *o, struct error *err) {
    errno = ferror(o->file) ? EIO : 0;
    bool bad = fflush(o->file) || errno;
    int why = errno;
    if (fclose(o->file) && !bad)
        bad = true, why = errno;
    o->file = NULL;
    if (!bad && o->beside && rename(o->beside, o->place))
        bad = true, why = errno;
    errno = why;
    if (bad)
        failed(o->path, err);
    else if (o->beside)
        *o->beside = 0; /* has another name now */
    output_discard(o);
    return bad ? -1 : 0;
}

void output_discard(struct output *o) {
    if (o->file)
        fclose(o->file);
    if (o->beside && *o->beside)
        unlink(o->beside);
    free(o->beside);
    free(o->place);
    *o = (struct output){0};
}

int output_flush_stdout(struct error *err) {
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout))
        return 0;
    return error_set(err, "stdout: cannot write%s%s", errno ? ": " : "",
                     errno ? strerror(errno) : "");
}
