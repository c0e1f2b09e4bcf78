#include "model/parallel/watchdog.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* Milliseconds: for joining (mpi.c gives 20 seconds); for all to end when one has, and then for
 * mpirun. */
enum { JOIN_LIMIT = 18000, END_LIMIT = 10000, LOOK_EVERY = 500 };

static bool *joined; /* shared with the watchdog */

/* Or its daemon on another host. Of other launchers we do not know what they wait for. */
static bool is_mpirun(pid_t pid) {
    char path[64], program[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t n = readlink(path, program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    const char *name = strrchr(program, '/');
    return name && (!strcmp(name, "/orterun") || !strcmp(name, "/orted"));
}

/* A child of mpirun in one of these states (man proc: Z is a zombie); 0: there is none. */
static int find_rank(pid_t mpirun, const char *states) {
    char path[64], state;
    int pid, found = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)mpirun, (int)mpirun);
    FILE *children = fopen(path, "r");
    while (children && !found && fscanf(children, "%d", &pid) == 1) {
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *f = fopen(path, "r");
        if (f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1 && strchr(states, state))
            found = pid;
        if (f)
            fclose(f);
    }
    if (children)
        fclose(children);
    return found;
}

/* Whether no watchdog of another rank has come here before: a name can be taken once. */
static bool is_first(pid_t mpirun) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "samebits-mpirun-%d", (int)mpirun);
    return !bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&name, sizeof name);
}

/* It does not read its ranks' stderr any more. */
static void tell_for(pid_t mpirun) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/2", (int)mpirun);
    int file = open(path, O_WRONLY | O_APPEND | O_NONBLOCK);
    if (file >= 0)
        dprintf(file, "demo: no rank is left, and mpirun waits for itself: it ends here\n");
}

static void tell(pid_t mpirun, pid_t own, const char *rank, bool ended) {
    int stopped = find_rank(mpirun, "Tt");
    if (ended)
        dprintf(STDERR_FILENO, "demo: rank %s (process %d) ended while the ranks joined\n", rank,
                (int)own);
    else if (stopped)
        dprintf(STDERR_FILENO, "demo: the ranks did not all join: process %d is stopped\n",
                stopped);
    else
        dprintf(STDERR_FILENO, "demo: the ranks did not all join\n");
}

/* A rank has ended, so all have to. */
static void end_others(struct pollfd *mpirun, pid_t pid) {
    int waited = 0, alone = 0, left;
    for (; !poll(mpirun, 1, LOOK_EVERY) && alone < END_LIMIT; waited += LOOK_EVERY) {
        left = find_rank(pid, "RSDTt");
        alone = left ? 0 : alone + LOOK_EVERY;
        if (left && waited >= END_LIMIT)
            kill(left, SIGKILL); /* mpirun names it */
    }
    if (alone < END_LIMIT)
        return;
    tell_for(pid);
    syscall(SYS_pidfd_send_signal, mpirun->fd, SIGKILL, NULL, 0);
}

/* By system call: glibc has it from 2.36 on. */
static struct pollfd when_it_ends(pid_t pid) {
    return (struct pollfd){.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
}

static void watch(pid_t mpirun, pid_t own, const char *rank) {
    struct pollfd ends[] = {when_it_ends(mpirun), when_it_ends(own)};
    bool ended = ends[1].fd < 0 || poll(ends, 2, JOIN_LIMIT);
    if (!ended && *joined)
        ended = poll(ends, 2, -1);
    if (ends[0].fd < 0 || ends[0].revents || !is_first(mpirun))
        return;
    if (!*joined)
        tell(mpirun, own, rank, ended);
    close(STDERR_FILENO); /* mpirun waits for its end */
    end_others(ends, mpirun);
}

void watchdog_start(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    pid_t mpirun = getppid(), own = getpid();
    if (!rank || !is_mpirun(mpirun))
        return;
    void *shared =
        mmap(NULL, sizeof *joined, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return;
    joined = shared;
    if (fork())
        return;
    setsid(); /* signals for the ranks, and for the terminal's programs, are not for this one */
    close_range(STDIN_FILENO, STDOUT_FILENO, 0);
    close_range(STDERR_FILENO + 1, ~0U, 0);
    watch(mpirun, own, rank);
    _exit(0);
}

void watchdog_joined(void) {
    if (joined)
        *joined = true;
}
