/* The model served with the learner's code in the engine: every tensor, token and fingerprint is
 * noted, so that the first one that differs can be shown. */
#include "tutorials/common/serve.h"
#include "model/ops.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/own_caches.h"
#include "scheduler/paged_memory.h"
#include "tests/labs/lab.h"
#include "tutorials/common/contiguous.h"
#include "tutorials/common/group.h"
#include "tutorials/common/requests.h"

#include <stdlib.h>
#include <string.h>

enum { POOL_BLOCK = 4, MAX_RUNNING = 8, LONG_PROMPT = 128 };

struct served {
    struct lab_log *log;
    enum lab_way way;
    int n, max_new;
    const struct sampling_options *sampling;
    struct device *dev;
    const struct memory_request *requests; /* of the engine's run */
    struct request_memory *memory;
    struct kv_cache *(*cache)(struct request_memory *m, int request); /* the memory's own */
    int request, first, n_rows; /* of the pass that runs; request -1: several */
};

static struct served served; /* phases' callbacks have no context */

static bool is_fused(void) {
    return served.way >= LAB_FUSED;
}

/* ---- what a pass computes --------------------------------------------------------------------
 */

static void see(void *context, enum tensor_id id, int layer, const float *x, int n_rows,
                int n_cols) {
    struct served *s = context;
    size_t bytes = sizeof *x * (size_t)n_rows * (size_t)n_cols;
    float *host = malloc(bytes + 1);
    if (!host)
        exit(2);
    s->dev->ops->download(s->dev, host, x, bytes);
    if (id == TENSOR_EMBEDDING)
        s->n_rows = n_rows;
    int first = s->first + s->n_rows - n_rows; /* the logits are those of the last row */
    char where[48] = "";
    if (layer >= 0)
        snprintf(where, sizeof where, "layer %d, ", layer);
    if (s->request < 0)
        lab_rows(s->log, host, n_rows, n_cols, "row", first, "all requests, %s%s", where,
                 tensor_name(id));
    else
        lab_rows(s->log, host, n_rows, n_cols, "position", first, "request %d, %s%s", s->request,
                 where, tensor_name(id));
    free(host);
}

static void begin_pass(struct served *s, int request, int first) {
    s->request = request;
    s->first = first;
    s->n_rows = 0;
}

/* Where the positions of a request lie, as far as it has room. */
static void note_places(struct lab_log *log, const struct kv_cache *cache) {
    int64_t *slots = malloc(sizeof *slots * ((size_t)cache->capacity + 1));
    struct error err;
    if (slots && !cache->slots(cache, 0, cache->capacity, slots, &err))
        lab_places(log, slots, cache->capacity, POOL_BLOCK);
    free(slots);
}

/* Stands in for the memory's `cache`, which the engine calls before the pass of a request. */
static struct kv_cache *cache_of(struct request_memory *m, int request) {
    struct kv_cache *cache = served.cache(m, request);
    begin_pass(&served, is_fused() ? -1 : request,
               is_fused() ? 0 : served.requests[request].sequence->n_cached);
    if (cache && served.way != LAB_OWN_CACHES && served.way != LAB_BATCHES)
        note_places(served.log, cache);
    return cache;
}

static int (*start_memory)(struct request_memory *, const struct scheduler *,
                           const struct memory_request *, int, struct error *);

static int remember_requests(struct request_memory *m, const struct scheduler *scheduler,
                             const struct memory_request *requests, int n, struct error *err) {
    served.requests = requests;
    return start_memory(m, scheduler, requests, n, err);
}

static void spy_on(struct request_memory *m) {
    served.cache = m->cache;
    m->cache = cache_of;
    start_memory = m->start;
    m->start = remember_requests;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void note_answer(struct served *s, int request, const struct sequence *answer) {
    uint64_t fingerprint = fingerprint_value(&answer->fingerprint);
    char text[17];
    lab_ints(s->log, answer->tokens + answer->n_prompt, sequence_new_tokens(answer), "token",
             answer->n_prompt, "request %d, the answer", request);
    fingerprint_text(text, fingerprint);
    lab_text(s->log, text, "request %d, fingerprint", request);
}

static int run_alone(struct demo *demo, const struct workload *w, struct fingerprint *all,
                     struct error *err) {
    for (int i = 0; i < w->n; i++) {
        const struct request *r = &w->requests[i];
        struct sequence answer = {0};
        begin_pass(&served, i, 0);
        int result = sequence_start(&answer, (uint32_t)i, &r->sampling, err) ||
                     sequence_add_prompt(&answer, r->prompt, r->n_prompt, r->max_new, err) ||
                     generate(&demo->generator, &answer, NULL, err);
        if (!result) {
            note_answer(&served, i, &answer);
            fingerprint_add_sequence(all, fingerprint_value(&answer.fingerprint));
        }
        sequence_end(&answer);
        if (result)
            return -1;
    }
    return 0;
}

static int run_engine(struct demo *demo, const struct workload *w, struct request_memory *memory,
                      struct fingerprint *all, struct error *err) {
    struct engine engine = {0};
    struct engine_options options = {.scheduler = {.max_running = MAX_RUNNING,
                                                   .token_budget = 256,
                                                   .chunk = 128,
                                                   .continuous = served.way != LAB_BATCHES},
                                     .memory = memory,
                                     .one_pass = is_fused()};
    spy_on(memory);
    demo->generator.fused = is_fused();
    int result = engine_run(&engine, &demo->generator, w->requests, w->n, &options, err);
    for (int i = 0; !result && i < w->n; i++) {
        note_answer(&served, i, &engine.answers[i].sequence);
        fingerprint_add_sequence(all, fingerprint_value(&engine.answers[i].sequence.fingerprint));
    }
    engine_end(&engine);
    return result;
}

static int run_own_caches(struct demo *demo, const struct workload *w, struct fingerprint *all,
                          struct error *err) {
    struct own_caches memory;
    own_caches_start(&memory, &demo->model, kv_dynamic_new, kv_cache_free, 0);
    int result = run_engine(demo, w, &memory.base, all, err);
    own_caches_end(&memory);
    return result;
}

/* The pool holds the longest request and no more, and blocks are small: requests are preempted, and
 * share the blocks of what the chat's frame puts before each prompt. Readers and kernels get twice
 * as much, so that there are several at a time. */
static int run_paged(struct demo *demo, const struct workload *w, struct fingerprint *all,
                     struct error *err) {
    int most = 0;
    for (int i = 0; i < w->n; i++) {
        int blocks = blocks_for(w->requests[i].n_prompt + w->requests[i].max_new, POOL_BLOCK);
        most = blocks > most ? blocks : most;
    }
    bool wants_several = served.way == LAB_READERS || served.way == LAB_KERNELS;
    struct kv_pool_options options = {.block_size = POOL_BLOCK,
                                      .n_blocks = wants_several ? 2 * most : most,
                                      .poison = true,
                                      .type = served.way == LAB_SMALL ? KV_BFP8 : KV_BFP16};
    struct paged_options paged = {PREEMPT_RECOMPUTE, true};
    struct kv_pool pool = {0};
    struct paged_memory memory = {0};
    if (kv_pool_start(&pool, &demo->model, &options, err))
        return -1;
    paged_memory_start(&memory, &pool, &paged);
    int result = run_engine(demo, w, &memory.base, all, err);
    lab_int(served.log, memory.stats.preemptions, "preemptions");
    lab_int(served.log, memory.stats.shared, "tokens that were shared");
    paged_memory_end(&memory);
    lab_int(served.log, pool.blocks.stats.used, "blocks in use at the end");
    kv_pool_end(&pool);
    return result;
}

static int serve_all_ways(struct demo *demo, struct error *err) {
    struct workload w = {0};
    struct fingerprint all = {0};
    struct probe probe = {see, &served};
    demo->generator.probe = &probe;
    const char *path = served.way == LAB_READERS   ? "data/prompts/document.jsonl"
                       : served.way == LAB_KERNELS ? "data/prompts/short.jsonl"
                                                   : "data/prompts/mixed.jsonl";
    served.dev = demo->dev;
    int result = demo_read_requests(demo, path, &w, err) || fingerprint_start(&all, err);
    int n = w.n;
    for (int i = 0; i < w.n; i++) {
        struct request *r = &w.requests[i];
        r->max_new = r->max_new < served.max_new ? r->max_new : served.max_new;
        if (served.way == LAB_NO_CACHE && r->n_prompt > LONG_PROMPT)
            r->max_new = 1; /* they are read whole for each token */
        if (served.sampling)
            r->sampling = *served.sampling;
    }
    w.n = served.n < n ? served.n : n;
    if (!result)
        result = served.way == LAB_NO_CACHE ? run_alone(demo, &w, &all, err)
                 : served.way == LAB_OWN_CACHES || served.way == LAB_BATCHES
                     ? run_own_caches(demo, &w, &all, err)
                     : run_paged(demo, &w, &all, err);
    lab_int(served.log, w.n, "requests served");
    w.n = n;
    char text[17];
    fingerprint_text(text, fingerprint_value(&all));
    lab_text(served.log, text, "fingerprint of all requests");
    demo->generator.probe = NULL;
    fingerprint_end(&all);
    workload_free(&w);
    return result ? -1 : 0;
}

const struct ops *lab_device(void) {
    return &emu_ops ? &emu_ops : &ref_ops;
}

void lab_serve(struct lab_log *log, int n, enum lab_way way, int max_new,
               const struct sampling_options *sampling) {
    static const struct phase phase = {.title = "lab", .about = "", .tables = serve_all_ways};
    char *argv[] = {"lab", "--device", (char *)lab_device()->name, "--threads", "1", NULL};
    served =
        (struct served){.log = log, .way = way, .n = n, .max_new = max_new, .sampling = sampling};
    lab_int(log, demo_main(5, argv, &phase), "the engine's exit status");
}

/* ---- a naive batch ---------------------------------------------------------------------------
 */

static struct demo *loaded; /* the model, while batches are served */
static void (*run_batches)(void *context);
static void *batches;
static const struct lab_batch *naive; /* the one that runs */
static int n_passes;
static volatile sig_atomic_t interrupt;

static void see_batch(void *context, enum tensor_id id, int layer, const float *x, int n_rows,
                      int n_cols) {
    if (id == TENSOR_EMBEDDING) {
        lab_int(served.log, n_rows, "rows of pass %d", ++n_passes);
        interrupt = n_passes == naive->stop_after;
    }
    if (naive->tensors)
        see(context, id, layer, x, n_rows, n_cols);
}

static void note_batch(const struct group *g, const struct naive_waste *waste) {
    lab_int(served.log, waste->steps, "waste.steps");
    lab_int(served.log, waste->prompt_rows, "waste.prompt_rows");
    lab_int(served.log, waste->padding_rows, "waste.padding_rows");
    lab_int(served.log, waste->answer_rows, "waste.answer_rows");
    lab_int(served.log, waste->idle_rows, "waste.idle_rows");
    for (int i = 0; i < g->n; i++) {
        lab_int(served.log, g->sequences[i].finish, "request %d, finish", i);
        lab_int(served.log, g->sequences[i].n_cached, "request %d, tokens in the cache", i);
        note_answer(&served, i, &g->sequences[i]);
    }
}

static void serve_batch(struct demo *demo) {
    struct probe probe = {see_batch, &served};
    struct error err;
    struct request requests[16];
    struct group g = {0};
    struct naive_waste waste;
    int32_t prompt[512];
    for (int i = 0; i < 512; i++)
        prompt[i] = 40 + i * 7 % 400;
    for (int i = 0; i < naive->n; i++)
        requests[i] = (struct request){.prompt = prompt + i,
                                       .n_prompt = naive->lengths[i],
                                       .max_new = naive->max_new[i],
                                       .sampling = {.top_p = 1}};
    demo->generator.chunk = naive->chunk;
    demo->generator.ignore_stop = true;
    demo->generator.probe = &probe;
    demo->generator.interrupted = &interrupt;
    served.dev = demo->dev;
    int result = group_start(demo, &g, requests, naive->n, 0, &contiguous_caches[DYNAMIC], &err);
    if (!result) {
        result = group_answer(demo, &g, &waste, &err);
        lab_int(served.log, result, "naive_batch_generate");
    }
    if (!result)
        note_batch(&g, &waste);
    group_end(&g);
    demo->generator.probe = NULL;
}

void lab_serve_batch(struct lab_log *log, const struct lab_batch *batch) {
    served = (struct served){.log = log, .request = -1};
    naive = batch;
    n_passes = 0;
    interrupt = 0;
    serve_batch(loaded);
}

static int run_loaded(struct demo *demo, struct error *err) {
    (void)err;
    loaded = demo;
    run_batches(batches);
    interrupt = 0;
    return 0;
}

void lab_with_model(void (*run)(void *context), void *context) {
    static const struct phase phase = {.title = "lab", .about = "", .tables = run_loaded};
    char *argv[] = {"lab", "--device", "cpu", "--threads", "1", NULL};
    run_batches = run;
    batches = context;
    if (demo_main(5, argv, &phase))
        exit(2);
}
