/*
 * How much memory the host could still give. The kernel's own estimate for the machine is
 * MemAvailable; a control group (the limit of a container or a service) and RLIMIT_AS (ulimit -v)
 * may allow this process less.
 */
#include "ref/ref.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static size_t least(size_t a, unsigned long long b) {
    return a < b ? a : (size_t)b;
}

static FILE *open_under(const char *root, const char *folder, const char *name) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    return n > 0 && n < (int)sizeof path ? fopen(path, "r") : NULL;
}

/* The number behind `key` at the start of a line; "" is the first word of the file. False when
 * there is none, as in memory.max, which holds "max" when there is no limit. */
static bool read_number(const char *root, const char *folder, const char *name, const char *key,
                        unsigned long long *out) {
    FILE *f = open_under(root, folder, name);
    char line[256];
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f))
        found = !strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), "%llu", out) == 1;
    if (f)
        fclose(f);
    return found;
}

/* The files of the two versions of control groups. */
struct cgroup_files {
    const char *mount, *limit, *usage, *reclaimable;
};

/* What one control group still allows. Its usage counts cached files, and the kernel drops those
 * that were not used lately before it refuses memory. */
static size_t cgroup_left(const char *root, const char *folder, const struct cgroup_files *files) {
    unsigned long long limit, usage, reclaimable = 0;
    if (!read_number(root, folder, files->limit, "", &limit) ||
        !read_number(root, folder, files->usage, "", &usage))
        return SIZE_MAX;
    read_number(root, folder, "memory.stat", files->reclaimable, &reclaimable);
    usage = usage > reclaimable ? usage - reclaimable : 0;
    return least(SIZE_MAX, limit > usage ? limit - usage : 0);
}

/* A group is bound by all groups above it, too. In a container the path may name groups that are
 * not mounted: they are passed over. */
static size_t cgroups_left(const char *root, const char *group, const struct cgroup_files *files) {
    char folder[PATH_MAX];
    size_t left = SIZE_MAX, mount = strlen(files->mount);
    int n = snprintf(folder, sizeof folder, "%s%s", files->mount, group);
    if (n < 0 || n >= (int)sizeof folder)
        return left;
    for (;;) {
        left = least(left, cgroup_left(root, folder, files));
        char *slash = strrchr(folder, '/');
        if (!slash || slash < folder + mount)
            return left;
        *slash = 0;
    }
}

/* Lines of /proc/self/cgroup: hierarchy:controllers:/path; version 2 has hierarchy 0. */
static size_t all_cgroups_left(const char *root) {
    static const struct cgroup_files v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                           "memory.usage_in_bytes", "total_inactive_file "};
    static const struct cgroup_files v2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                           "inactive_file "};
    FILE *f = open_under(root, "/proc/self", "cgroup");
    char line[PATH_MAX];
    size_t left = SIZE_MAX;
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group;
        if (!controllers || !(group = strchr(++controllers, ':')))
            continue;
        *group++ = 0;
        if (!strcmp(controllers, "memory"))
            left = least(left, cgroups_left(root, group, &v1));
        else if (!*controllers)
            left = least(left, cgroups_left(root, group, &v2));
    }
    if (f)
        fclose(f);
    return left;
}

size_t ref_address_space_left(const char *root) {
    struct rlimit limit;
    unsigned long long pages;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY ||
        !read_number(root, "/proc/self", "statm", "", &pages))
        return SIZE_MAX;
    unsigned long long used = pages * (unsigned long long)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > used ? least(SIZE_MAX, limit.rlim_cur - used) : 0;
}

size_t ref_host_available(const char *root) {
    unsigned long long kilobytes;
    size_t left = least(all_cgroups_left(root), ref_address_space_left(root));
    if (read_number(root, "/proc", "meminfo", "MemAvailable:", &kilobytes))
        left = least(left, kilobytes * 1024);
    return left;
}

size_t ref_available(struct device *dev) {
    (void)dev;
    return ref_host_available("");
}
