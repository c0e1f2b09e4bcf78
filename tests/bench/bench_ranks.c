/*
 * bench_ranks - decoding by ranks on this machine: 2 ranks of one thread beside one process of two
 * threads, what each has in memory, and what --plan says of it. build/gpu/bench/bench_ranks: 2
 * ranks with a GPU each, which talk by NCCL, beside one process on one GPU.
 *
 * The model has the shape of Qwen3-0.6B and random weights (large_checkpoint.h). Each measurement
 * is a process or mpirun of this program; they take turns, and medians are compared.
 */
#include "model/forward.h"
#include "model/parallel/mpi.h"
#include "model/parallel/nccl.h"
#include "scheduler/engine.h"
#include "scheduler/paged_memory.h"
#include "tests/bench/large_checkpoint.h"

#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum {
    PROMPT = 16,
    STEPS = 24,
    MOST_TURNS = 5,
    CALLS = 40,
    TOGETHER = 10, /* calls that are timed together: a GPU's follow each other */
    LARGE_WORDS = 1 << 18
};

/* What one run finds; of ranks, rank 0's, and the largest memory. */
struct found {
    double step_ms, talk_ms; /* medians of a step; communication in it, the mean */
    double cpu_ms; /* that a thread computes in a step, the mean: also on a busy machine */
    double weights_mb, most_mb;
    double small_us, large_us; /* a sum of 8 KB and one of 2 MB, at best */
    int layers, hidden, vocab; /* of the model */
};

static double times[STEPS + 1];
static int n_times;

static int note_time(void *context, const struct sequence *s, const float *logits,
                     struct error *err) {
    (void)context, (void)s, (void)logits, (void)err;
    times[n_times++] = clock_now();
    return 0;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

/* ---- CPU time, without that of waiting for other ranks ----------------------------------------
 */

static double waited; /* CPU seconds */
static struct parallel plain;

static double cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int timed_max(struct parallel *p, uint32_t *x, size_t n, struct error *err) {
    double began = cpu_now();
    int result = plain.max(p, x, n, err);
    waited += cpu_now() - began;
    return result;
}

static int timed_sum(struct parallel *p, int64_t *x, size_t n, struct error *err) {
    double began = cpu_now();
    int result = plain.sum(p, x, n, err);
    waited += cpu_now() - began;
    return result;
}

static int timed_gather(struct parallel *p, uint32_t *all, const uint32_t *mine, const int *n,
                        struct error *err) {
    double began = cpu_now();
    int result = plain.gather(p, all, mine, n, err);
    waited += cpu_now() - began;
    return result;
}

static void time_ranks(struct parallel *ranks) {
    plain = *ranks;
    ranks->max = timed_max;
    ranks->sum = timed_sum;
    ranks->gather = timed_gather;
}

/* ---- measurements ---------------------------------------------------------------------------- */

/* The step of one sequence in a pool, in milliseconds. */
static double measure_steps(struct model *model) {
    struct error err;
    struct generator g;
    struct engine e;
    struct kv_pool pool;
    struct paged_memory memory;
    int32_t prompt[PROMPT];
    double steps[STEPS];
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = 1000 * i + 7;
    struct request request = {
        .prompt = prompt, .n_prompt = PROMPT, .max_new = STEPS + 1, .sampling = {.top_p = 1}};
    struct kv_pool_options size = {.block_size = 16, .n_blocks = 8};
    struct paged_options options = {PREEMPT_RECOMPUTE, false};
    struct engine_options engine = {
        .scheduler = {1, 64, 64, false}, .memory = &memory.base, .one_pass = true};
    if (generator_start(&g, model, &err) || kv_pool_start(&pool, model, &size, &err))
        fail(err.text);
    paged_memory_start(&memory, &pool, &options);
    g.fused = g.ids_only = g.ignore_stop = true;
    g.on_token = note_time;
    if (engine_run(&e, &g, &request, 1, &engine, &err))
        fail(err.text);
    for (int i = 0; i < STEPS; i++)
        steps[i] = (times[i + 1] - times[i]) * 1e3;
    engine_end(&e);
    paged_memory_end(&memory);
    kv_pool_end(&pool);
    generator_end(&g);
    return median(steps, STEPS);
}

/* A sum of n words, in microseconds: the fastest of many. */
static double measure_sum(struct parallel *ranks, struct device *dev, size_t n, int calls) {
    struct error err;
    struct fault fault;
    int64_t *x = dev->ops->alloc(dev, sizeof *x * n, "a sum", &err);
    double best = 1e9;
    for (int i = 0; x && i < calls; i++) {
        double began = clock_now();
        for (int j = 0; j < TOGETHER; j++)
            parallel_sum(ranks, dev, x, n);
        parallel_wait(ranks, dev);
        double us = (clock_now() - began) * 1e6 / TOGETHER;
        best = us < best ? us : best;
    }
    if (dev->ops->sync(dev, &fault, &err) || parallel_check(ranks, &err))
        fail(err.text);
    dev->ops->free(dev, x, sizeof *x * n);
    return best;
}

static double most_mb(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

/* Each rank has a GPU of its own. */
static void choose_gpu(const struct parallel *ranks) {
    char number[16];
    snprintf(number, sizeof number, "%d", ranks ? ranks->neighbour : 0);
    setenv("CUDA_VISIBLE_DEVICES", number, 1);
}

/* One process of a measurement: prints what it found. */
static int run_rank(const char *folder, int n_threads) {
    struct error err;
    struct device_options options = {.n_threads = n_threads};
    struct parallel *ranks = mpi_is_launched() ? mpi_join(&err) : NULL;
    choose_gpu(ranks);
    const struct ops *ops = &gpu_ops ? &gpu_ops : &ref_ops;
    struct device *dev = ops->open(&options, &err);
    struct model model;
    struct found f = {0};
    if (!dev || model_load_part(&model, dev, folder, ranks, NULL, &err) ||
        (ranks && &gpu_ops && nccl_join(ranks, dev, &err)))
        fail(err.text);
    f.weights_mb = (double)dev->bytes / 1048576;
    if (ranks) {
        ranks->counts = (struct parallel_counts){0};
        time_ranks(ranks);
    }
    double began = cpu_now();
    f.step_ms = measure_steps(&model);
    f.cpu_ms = (cpu_now() - began - waited) * 1e3 / (STEPS + 1) / n_threads;
    f.talk_ms = ranks ? ranks->counts.seconds * 1e3 / (STEPS + 1) : 0;
    f.most_mb = most_mb();
    if (ranks) {
        uint32_t most = (uint32_t)f.most_mb;
        ranks->max(ranks, &most, 1, &err);
        f.most_mb = most;
        f.small_us = measure_sum(ranks, dev, HIDDEN, CALLS);
        f.large_us = measure_sum(ranks, dev, LARGE_WORDS, CALLS / 10);
    }
    printf("found %f %f %f %f %f %f %f %d %d %d\n", f.step_ms, f.talk_ms, f.cpu_ms, f.weights_mb,
           f.most_mb, f.small_us, f.large_us, model.config.n_layers, model.config.hidden,
           model.config.vocab_size);
    fflush(stdout);
    model_free(&model);
    if (ranks && ranks->on_device)
        ranks->on_device->end(ranks, dev);
    dev->ops->close(dev);
    if (ranks)
        ranks->end(ranks, NULL);
    return 0;
}

static struct found run(const char *line) {
    struct found f;
    char text[256];
    bool good = false;
    FILE *p = popen(line, "r");
    while (p && fgets(text, sizeof text, p))
        good = good || sscanf(text, "found %lf %lf %lf %lf %lf %lf %lf %d %d %d", &f.step_ms,
                              &f.talk_ms, &f.cpu_ms, &f.weights_mb, &f.most_mb, &f.small_us,
                              &f.large_us, &f.layers, &f.hidden, &f.vocab) == 10;
    if (!p || pclose(p) || !good)
        fail(line);
    return f;
}

/* The run whose step is the median. */
static struct found middle(struct found *runs, int n) {
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && runs[j].step_ms < runs[j - 1].step_ms; j--) {
            struct found other = runs[j];
            runs[j] = runs[j - 1];
            runs[j - 1] = other;
        }
    return runs[n / 2];
}

/* --plan's formula for 2 ranks, with what was measured here: plan.c. On a GPU, where nobody sees
 * how long a pass computes, half of one process's step. */
static void show_plan(const struct found *one, const struct found *two) {
    double hops = 4.0 * one->layers * 2 + 2 + 1 + 1 + 3, latency = two->small_us / 2;
    double link = 8.0 * LARGE_WORDS / (two->large_us - two->small_us) * 1e-3;
    double kb =
        (2 * one->layers * (8.0 * one->hidden + 4) + 4 * one->hidden + 4.0 * one->vocab / 2) * 1e-3;
    double talk = hops * latency * 1e-3 + kb / link * 1e-3;
    double computing = &gpu_ops ? one->step_ms / 2 : one->cpu_ms;
    printf("a sum of 8 KB: %.1f us, so a hop takes %.1f us; a sum of 2 MB: %.0f us, so a link has "
           "%.2f GB/s\n",
           two->small_us, latency, two->large_us, link);
    printf("plan: %.2f ms a step, of it talking %.2f; measured: %.2f ms a step", computing + talk,
           talk, two->step_ms);
    if (&gpu_ops)
        printf("\n");
    else
        printf(", computing %.2f\n", two->cpu_ms);
}

/* bench_ranks [TURNS [FOLDER]]: another model. (Its processes have a third argument.) */
int main(int argc, char **argv) {
    static const char mpirun[] =
        "mpirun --allow-run-as-root --bind-to none --mca pml ob1 --mca btl self,vader "
        "--mca oob_tcp_if_include lo -n 2";
    char folder[128], path[160], one[400], two[600];
    struct found alone[MOST_TURNS], shared[MOST_TURNS];
    int n_turns = argc > 1 ? atoi(argv[1]) : MOST_TURNS;
    const char *model = argc > 2 ? argv[2] : folder;
    if (argc == 4)
        return run_rank(argv[2], atoi(argv[3]));
    if (n_turns < 1 || n_turns > MOST_TURNS)
        fail("how many turns: 1 to 5");
    if (model == folder)
        write_checkpoint(folder, path);
    snprintf(one, sizeof one, "%s 1 %s 2", argv[0], model);
    snprintf(two, sizeof two, "%s %s 1 %s 1", mpirun, argv[0], model);
    for (int i = 0; i < n_turns; i++) {
        alone[i] = run(one);
        shared[i] = run(two);
    }
    if (model == folder)
        remove_checkpoint(folder, path);
    struct found a = middle(alone, n_turns), b = middle(shared, n_turns);
    printf("%-34s %9s %10s %9s %11s %11s\n",
           model == folder ? "qwen3-0.6b, decoding one sequence" : model, "ms a step", "talking ms",
           "CPU ms", "weights MB", "process MB");
    printf("%-34s %9.2f %10.2f %9.2f %11.1f %11.1f\n",
           &gpu_ops ? "one process, one GPU" : "one process, 2 threads", a.step_ms, a.talk_ms,
           a.cpu_ms, a.weights_mb, a.most_mb);
    printf("%-34s %9.2f %10.2f %9.2f %11.1f %11.1f\n",
           &gpu_ops ? "2 ranks with a GPU each" : "2 ranks of 1 thread", b.step_ms, b.talk_ms,
           b.cpu_ms, b.weights_mb, b.most_mb);
    printf("speed of the ranks: %.2f of the process's%s; memory of a rank: %.2f\n",
           a.step_ms / b.step_ms, &gpu_ops ? "" : " (wanted: 0.90)", b.most_mb / a.most_mb);
    show_plan(&a, &b);
    return 0;
}
