#include "tests/launch_ranks.h"

#include "tests/command.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

char ranks_demo[128], ranks_worker[128];

bool ranks_can_run(const char *argv0) {
    const char *folder = build_folder(argv0);
    snprintf(ranks_demo, sizeof ranks_demo, "%s/demo14", folder);
    snprintf(ranks_worker, sizeof ranks_worker, "%s/tests/ranks/worker", folder);
    bool can = !access(ranks_worker, X_OK) && !system("command -v mpirun >/dev/null");
    if (!can)
        printf("no mpirun, or no %s: phase 14 is not tested\n", ranks_worker);
    return can;
}

pid_t ranks_launch(bool by_hand, const char *arguments) {
    char line[1000];
    int input[2];
    snprintf(line, sizeof line, "exec env %s %s --patience 2 --device cpu %s %s >%s/out 2>%s/err",
             by_hand ? MPIRUN "-n 3" : "ASAN_OPTIONS=detect_leaks=0", ranks_demo,
             by_hand ? "" : "--ranks 3", arguments, command_folder, command_folder);
    pid_t pid = fork();
    if (pid)
        return pid;
    if (!pipe(input)) /* the child keeps the other end: nothing comes, and no end of it */
        dup2(input[0], STDIN_FILENO);
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

/* -1: not there yet. */
static pid_t find_rank(pid_t mpirun, int rank) {
    static char text[1 << 17];
    char path[300], wanted[40];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)mpirun, (int)mpirun);
    FILE *f = fopen(path, "r");
    pid_t found = -1;
    snprintf(wanted, sizeof wanted, "OMPI_COMM_WORLD_RANK=%d", rank);
    for (int pid; f && found < 0 && fscanf(f, "%d", &pid) == 1;) {
        snprintf(path, sizeof path, "/proc/%d/environ", pid);
        FILE *e = fopen(path, "r");
        size_t n = e ? fread(text, 1, sizeof text, e) : 0;
        if (e)
            fclose(e);
        if (memmem(text, n, wanted, strlen(wanted) + 1))
            found = pid;
    }
    if (f)
        fclose(f);
    return found;
}

pid_t ranks_process(pid_t mpirun, int rank) {
    pid_t found = -1;
    for (int i = 0; i < 500 && (found = find_rank(mpirun, rank)) < 0; i++)
        ranks_pause(10);
    return found;
}

int ranks_wait(pid_t pid, int seconds) {
    int status = 0;
    for (int i = 0; i < seconds * 50; i++, ranks_pause(20))
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

void ranks_pause(int milliseconds) {
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000L}, NULL);
}

int ranks_batches(int few) {
    const char *asked = getenv("SAMEBITS_BATCHES");
    return asked ? atoi(asked) : few;
}
