#include "model/files/folder.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int model_folder_check(const char *dir, struct error *err) {
    struct stat info;
    if (!stat(dir, &info) && S_ISDIR(info.st_mode))
        return 0;
    return error_set(err,
                     "%s: no such folder. --model needs a Hugging Face folder with config.json, "
                     "model.safetensors and tokenizer.json",
                     dir);
}

int model_folder_path(char *out, size_t size, const char *dir, const char *file,
                      struct error *err) {
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    const char *slash = n == 1 && dir[0] == '/' ? "" : "/";
    int length = snprintf(out, size, "%.*s%s%s", (int)n, dir, slash, file);
    if (length < 0 || (size_t)length >= size)
        return error_set(err, "%.100s...: the path is too long", dir);
    return 0;
}

bool model_folder_has(const char *dir, const char *file) {
    char path[PATH_MAX];
    struct stat info;
    return !model_folder_path(path, sizeof path, dir, file, NULL) &&
           (!lstat(path, &info) || errno != ENOENT);
}
