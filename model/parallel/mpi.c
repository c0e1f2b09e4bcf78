#include "model/parallel/mpi.h"
#include "model/parallel/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_AT_ONCE = 1 << 28, START_LIMIT = 20, HOST_NAME = 60 };

/* Seconds: as long as nobody sleeps, until a waiting rank leaves the core to others, until it
 * sleeps; and for those who are waited for to say that they wait, too. */
static const double YIELD_AFTER = 20e-6, SLEEP_AFTER = 300e-6, GRACE = 2;

/* Who a rank is, for messages. */
struct name {
    char host[HOST_NAME];
    int pid;
};

struct mpi {
    struct parallel base; /* first: pointers to it are pointers to the whole */
    MPI_Comm world, local;
    struct name *names; /* [n_ranks] */
    int *places;        /* [n_ranks] for gather */
    FILE *failures;     /* where this rank's failure is told */
};

static struct mpi *mpi_of(struct parallel *p) {
    return (struct mpi *)p;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void give_way(double waited) {
    if (waited > SLEEP_AFTER)
        nanosleep(&(struct timespec){0, waited > 0.1 ? 1000000 : 50000}, NULL);
    else if (waited > YIELD_AFTER)
        sched_yield();
}

/* Says "I wait" to all and notes who says it, too: waits [n_ranks]. */
static void ask_who_waits(struct mpi *m, bool *waits) {
    struct parallel *p = &m->base;
    MPI_Request *requests = calloc(2 * (size_t)p->n_ranks, sizeof *requests);
    char said = 0, *heard = calloc((size_t)p->n_ranks, 1);
    if (!requests || !heard)
        return;
    for (int r = 0; r < p->n_ranks; r++) {
        MPI_Irecv(&heard[r], 1, MPI_CHAR, r, 0, m->world, &requests[r]);
        MPI_Isend(&said, 1, MPI_CHAR, r, 0, m->world, &requests[p->n_ranks + r]);
    }
    for (double began = MPI_Wtime(), waited = 0; waited < GRACE; waited = MPI_Wtime() - began) {
        for (int r = 0, done; r < p->n_ranks; r++)
            if (!waits[r] && !MPI_Test(&requests[r], &done, MPI_STATUS_IGNORE))
                waits[r] = done;
        give_way(waited);
    }
    /* The process ends soon: what is still on its way keeps its memory. */
}

/* Sets err to the ranks that keep the others waiting. */
static int name_the_missing(struct mpi *m, const char *what, struct error *err) {
    struct parallel *p = &m->base;
    bool *waits = calloc((size_t)p->n_ranks, sizeof *waits);
    char list[300] = "";
    if (waits)
        ask_who_waits(m, waits);
    for (int r = 0; waits && r < p->n_ranks; r++) {
        size_t n = strlen(list);
        if (!waits[r])
            snprintf(list + n, sizeof list - n, "%srank %d (process %d on %s)", n ? ", " : "", r,
                     m->names[r].pid, m->names[r].host);
    }
    free(waits);
    return error_set(err, "%s did not come to a %s for %g seconds: all end here",
                     *list ? list : "ranks wait for each other, and one of them", what,
                     m->base.limit);
}

/* Until the request is done. */
static int wait_for(struct mpi *m, int started, MPI_Request *request, const char *what,
                    struct error *err) {
    double began = MPI_Wtime();
    int done = 0, result = started;
    while (!result && !(result = MPI_Test(request, &done, MPI_STATUS_IGNORE)) && !done) {
        double waited = MPI_Wtime() - began;
        if (waited > m->base.limit)
            return name_the_missing(m, what, err);
        give_way(waited);
    }
    if (!result)
        return 0;
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    MPI_Error_string(result, text, &n);
    return error_set(err, "MPI failed in a %s: %s", what, text);
}

/* ---- the calls ------------------------------------------------------------------------------- */

static int reduce(struct mpi *m, void *x, size_t size, size_t n, MPI_Datatype type, MPI_Op op,
                  const char *what, struct error *err) {
    char *at = x;
    int result = 0;
    for (size_t piece; n && !result; n -= piece, at += size * piece) {
        MPI_Request request;
        piece = n < MOST_AT_ONCE ? n : MOST_AT_ONCE;
        int started = MPI_Iallreduce(MPI_IN_PLACE, at, (int)piece, type, op, m->world, &request);
        result = wait_for(m, started, &request, what, err);
    }
    return result;
}

static int find_max(struct parallel *p, uint32_t *x, size_t n, struct error *err) {
    return reduce(mpi_of(p), x, sizeof *x, n, MPI_UINT32_T, MPI_MAX, "maximum", err);
}

static int find_sum(struct parallel *p, int64_t *x, size_t n, struct error *err) {
    return reduce(mpi_of(p), x, sizeof *x, n, MPI_INT64_T, MPI_SUM, "sum", err);
}

static int gather(struct parallel *p, uint32_t *all, const uint32_t *mine, const int *n,
                  struct error *err) {
    struct mpi *m = mpi_of(p);
    MPI_Request request;
    for (int r = 1; r < p->n_ranks; r++)
        m->places[r] = m->places[r - 1] + n[r - 1];
    int started = MPI_Iallgatherv(mine, n[p->rank], MPI_UINT32_T, all, n, m->places, MPI_UINT32_T,
                                  m->world, &request);
    return wait_for(m, started, &request, "gathering", err);
}

static int broadcast(struct parallel *p, void *x, size_t bytes, struct error *err) {
    struct mpi *m = mpi_of(p);
    MPI_Request request;
    int started = MPI_Ibcast(x, (int)bytes, MPI_BYTE, 0, m->world, &request);
    return wait_for(m, started, &request, "broadcast", err);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* A failure that all ranks find alike is told once: by rank 0, which ends the others before they
 * come to it. */
static void fail(struct mpi *m, const struct error *why) {
    enum { MOST_WAIT = 3 };
    int rank = m->base.rank;
    sleep((unsigned)(rank < MOST_WAIT ? rank : MOST_WAIT));
    if (rank)
        fprintf(m->failures, "demo: rank %d: %s\n", rank, why->text);
    else
        fprintf(m->failures, "demo: %s\n", why->text);
    fflush(m->failures);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

static void end(struct parallel *p, const struct error *failure) {
    struct mpi *m = mpi_of(p);
    struct error err;
    MPI_Request request;
    if (failure)
        fail(m, failure);
    int started = MPI_Ibarrier(m->world, &request);
    if (wait_for(m, started, &request, "common end", &err))
        fail(m, &err);
    alarm(START_LIMIT); /* MPI_Finalize has no limit of its own */
    MPI_Finalize();
    alarm(0);
    free(p->host);
    free(m->names);
    free(m->places);
    free(m);
}

/* ---- the beginning --------------------------------------------------------------------------- */

bool mpi_is_launched(void) {
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK");
}

/* Everything but this rank's failure goes nowhere. */
static FILE *be_silent(void) {
    int keep = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY);
    FILE *failures = keep < 0 ? NULL : fdopen(keep, "w");
    if (nowhere >= 0) {
        dup2(nowhere, STDOUT_FILENO);
        dup2(nowhere, STDERR_FILENO);
        close(nowhere);
    }
    return failures ? failures : stderr;
}

static int meet(struct mpi *m, struct error *err) {
    struct parallel *p = &m->base;
    struct name mine = {.pid = (int)getpid()};
    MPI_Request request;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* a copy has it, too */
    MPI_Comm_dup(MPI_COMM_WORLD, &m->world);
    MPI_Comm_rank(m->world, &p->rank);
    MPI_Comm_size(m->world, &p->n_ranks);
    MPI_Comm_split_type(m->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &m->local);
    MPI_Comm_rank(m->local, &p->neighbour);
    MPI_Comm_size(m->local, &p->n_neighbours);
    p->n_sharing = p->n_neighbours;
    m->failures = p->rank ? be_silent() : stderr;
    gethostname(mine.host, sizeof mine.host - 1);
    m->names = calloc((size_t)p->n_ranks, sizeof *m->names);
    m->places = calloc((size_t)p->n_ranks, sizeof *m->places);
    if (!m->names || !m->places)
        return error_set(err, "out of memory for %d ranks", p->n_ranks);
    int started = MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, m->names, sizeof mine, MPI_BYTE,
                                 m->world, &request);
    return wait_for(m, started, &request, "first meeting", err);
}

struct parallel *mpi_join(struct error *err) {
    struct mpi *m = calloc(1, sizeof *m);
    int level;
    if (!m) {
        error_set(err, "out of memory for MPI");
        return NULL;
    }
    m->failures = stderr;
    m->base = (struct parallel){.limit = START_LIMIT,
                                .max = find_max,
                                .sum = find_sum,
                                .gather = gather,
                                .broadcast = broadcast,
                                .end = end};
    watchdog_start();
    alarm(START_LIMIT); /* as in end */
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (level < MPI_THREAD_SERIALIZED) /* the server's engine has a thread of its own */
        error_set(err, "this MPI cannot be called from different threads");
    if (level < MPI_THREAD_SERIALIZED || meet(m, err))
        fail(m, err);
    alarm(0);
    watchdog_joined();
    return &m->base;
}

int mpi_launch(int n_ranks, char **argv, struct error *err) {
    char number[16];
    static char *const options[] = {"--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                                    /* One host: shared memory, and loopback for the rest. */
                                    "--mca", "pml", "ob1", "--mca", "btl", "self,vader", "--mca",
                                    "oob_tcp_if_include", "lo"};
    size_t n = 0, n_options = sizeof options / sizeof *options, n_argv = 0;
    while (argv[n_argv])
        n_argv++;
    char **line = calloc(n_options + n_argv + 4, sizeof *line);
    if (!line)
        return error_set(err, "out of memory for %d ranks", n_ranks);
    snprintf(number, sizeof number, "%d", n_ranks);
    line[n++] = "mpirun";
    line[n++] = "-n";
    line[n++] = number;
    for (size_t i = 0; i < n_options; i++)
        line[n++] = options[i];
    memcpy(line + n, argv, sizeof *line * n_argv);
    execvp(line[0], line);
    free(line);
    return error_set(err, "--ranks %d: mpirun cannot be started (%s): apt-get install openmpi-bin",
                     n_ranks, strerror(errno));
}
