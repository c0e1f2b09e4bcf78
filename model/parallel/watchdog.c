#include "model/parallel/watchdog.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

enum { LOOK_EVERY = 500, ALONE_LIMIT = 10000, STAGGER = 500 }; /* milliseconds */

/* Of another launcher we do not know what it waits for. */
static bool is_mpirun(pid_t pid) {
    char path[64], program[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t n = readlink(path, program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    const char *name = strrchr(program, '/');
    return name && (!strcmp(name, "/orterun") || !strncmp(name, "/mpirun", 7));
}

/* Whether a child of mpirun lives. Those that it has not waited for are zombies. */
static bool has_ranks(pid_t mpirun) {
    char path[64], state;
    bool any = false;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)mpirun, (int)mpirun);
    FILE *children = fopen(path, "r");
    for (int pid; children && !any && fscanf(children, "%d", &pid) == 1;) {
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *f = fopen(path, "r");
        any = f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1 && state != 'Z';
        if (f)
            fclose(f);
    }
    if (children)
        fclose(children);
    return any;
}

/* On mpirun's stderr: this process has none, or mpirun would wait for its end, too. */
static void tell(pid_t mpirun) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/2", (int)mpirun);
    int file = open(path, O_WRONLY | O_APPEND | O_NONBLOCK);
    if (file >= 0)
        dprintf(file, "demo: no rank is left, and mpirun waits for itself: it ends here\n");
}

/* The watchdogs of all ranks look; that of the first ends mpirun before the others' time comes. */
static void watch(pid_t mpirun, int rank) {
    struct pollfd end = {.fd = pidfd_open(mpirun, 0), .events = POLLIN};
    int limit = ALONE_LIMIT + STAGGER * rank, alone = 0;
    while (end.fd >= 0 && !poll(&end, 1, LOOK_EVERY)) {
        alone = has_ranks(mpirun) ? 0 : alone + LOOK_EVERY;
        if (alone >= limit) {
            tell(mpirun);
            pidfd_send_signal(end.fd, SIGKILL, NULL, 0);
            return;
        }
    }
}

void watchdog_start(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    pid_t mpirun = getppid();
    if (!rank || !is_mpirun(mpirun) || fork())
        return;
    setsid(); /* signals for the ranks, and for the terminal's programs, are not for this one */
    close_range(0, ~0U, 0);
    watch(mpirun, atoi(rank));
    _exit(0);
}
