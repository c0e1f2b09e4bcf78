/*
 * bench_receipts - phase 13, each beside what it replaces, in turns:
 *
 * - answers of 256 tokens with receipts, beside those without;
 * - the verification of a receipt, beside the generation of its answer; on a GPU also of 64 answers
 *   at once, beside their generation at once and one after the other;
 * - decoding with drafts of n-grams, beside decoding without: answers that quote a text, long
 *   answers, and random text, in which nothing comes twice but by accident.
 *
 * Two models: the shipped one, and one with the shape of Qwen3-0.6B and random weights. That one
 * has nothing to quote, so it is told to: what it draws is replaced by the shipped model's answer.
 * What is compared takes many short turns, each of which begins with the other one; a row is the
 * median of the turns' ratios, with the quartiles. build/gpu/bench/bench_receipts runs on a GPU. No
 * logits are brought to the host.
 */
#include "model/numerics.h"
#include "model/tokenizer/tokenizer.h"
#include "ref/ref.h"
#include "scheduler/draft.h"
#include "scheduler/generate.h"
#include "scheduler/receipt.h"
#include "tests/bench/large_checkpoint.h"

#include <string.h>
#include <time.h>

enum { ANSWER = 256, PROMPT = 32, TOGETHER = 64, MOST_TURNS = 64, MOST_TEXTS = 12 };

struct subject {
    struct device *dev;
    struct model model;
    struct generator generator;
    struct kv_pool pool; /* one for all: a recording of a pass is of one pool */
    json_t *files;       /* of receipts: none */
    const char *name;
    double seconds; /* of each row; at least one turn, at most MOST_TURNS */
};

static int n_threads; /* of a CPU */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void must(int result, const struct error *err) {
    if (result)
        fail(err->text);
}

/* One prompt and how it is answered. */
struct question {
    int32_t *ids;
    int n, max_new;
    bool ignore_stop;
    struct sampling_options sampling;
    int n_told; /* ids has so many tokens, the answer's, too, which is not the model's; 0: it is */
};

/* ---- a model is told what to say --------------------------------------------------------------
 */

static struct {
    const struct ops *ops; /* the device's */
    const struct question *question;
    uint32_t positions[4096]; /* of the tokens that are being drawn */
    int32_t *drawn;
    int n;
} told;

static void note_sample(struct device *dev, int32_t *token_ids, const float *logits,
                        const struct sampling *how, int n_rows, int vocab, int site) {
    told.ops->sample(dev, token_ids, logits, how, n_rows, vocab, site);
    told.drawn = token_ids;
    for (told.n = 0; told.n < n_rows; told.n++)
        told.positions[told.n] = how[told.n].position;
}

static int replace_drawn(struct device *dev, struct fault *fault, struct error *err) {
    int result = told.ops->sync(dev, fault, err);
    for (int i = 0; i < told.n; i++)
        if (told.positions[i] < (uint32_t)told.question->n_told)
            told.drawn[i] = told.question->ids[told.positions[i]];
    told.n = 0;
    return result;
}

static void tell(struct device *dev) {
    static struct ops ops;
    told.ops = dev->ops;
    ops = *dev->ops;
    ops.sample = note_sample;
    ops.sync = replace_drawn;
    dev->ops = &ops;
}

/* ---- answers ----------------------------------------------------------------------------------
 */

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* What a run of questions came to. */
struct run {
    struct request requests[TOGETHER];
    struct engine engine;
    double all, decoding; /* seconds to the last token: from the start, and from the last of the
                             first tokens */
    double first;
};

static int note_first(void *context, const struct sequence *s, const float *logits,
                      struct error *err) {
    (void)logits, (void)err;
    if (sequence_new_tokens(s) == 1)
        ((struct run *)context)->first = seconds_now();
    return 0;
}

/* Answers n questions together; run_end(run). */
static void answer(struct subject *s, const struct question *q, int n, bool receipts,
                   struct drafter *drafter, struct run *run) {
    struct error err;
    for (int i = 0; i < n; i++)
        run->requests[i] = (struct request){.prompt = q[i].ids,
                                            .n_prompt = q[i].n,
                                            .max_new = q[i].max_new,
                                            .sampling = q[i].sampling,
                                            .ignore_stop = q[i].ignore_stop,
                                            .receipt = receipts};
    struct generator g = s->generator;
    g.drafter = drafter;
    g.on_token = note_first;
    g.on_token_context = run;
    struct read_along how = {.generator = &g, .pool = &s->pool, .scheduler = {n, 4096, 4096, true}};
    told.question = q;
    double began = seconds_now();
    must(read_along(&how, run->requests, n, &run->engine, &err), &err);
    run->all = seconds_now() - began;
    run->decoding = seconds_now() - run->first;
}

static void run_end(struct run *run) {
    engine_end(&run->engine);
}

static struct question random_question(const struct subject *s, int n, float temperature,
                                       uint32_t seed) {
    struct question q = {malloc(sizeof *q.ids * (size_t)n),  n, ANSWER, true,
                         {temperature, 0, 1, seed, true, 0}, 0};
    for (int i = 0; i < n; i++)
        q.ids[i] = (int32_t)num_draw(seed, 7, (uint32_t)i, (uint64_t)s->model.config.vocab_size);
    return q;
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* What two things took, turn by turn. */
struct turns {
    double before[MOST_TURNS], after[MOST_TURNS];
    int n;
};

static void add_turn(struct turns *t, double before, double after) {
    t->before[t->n] = before;
    t->after[t->n++] = after;
}

/* Whether there is time for another one since `began`. */
static bool goes_on(const struct subject *s, const struct turns *t, double began) {
    return !t->n || (t->n < MOST_TURNS && seconds_now() - began < s->seconds);
}

/* Tokens per second of both, and before : after. */
static void show(const struct subject *s, const char *what, const struct turns *t, double n_tokens,
                 const char *wanted) {
    double ratio[MOST_TURNS], after[MOST_TURNS];
    char text[80];
    int n = t->n;
    for (int i = 0; i < n; i++) {
        ratio[i] = t->before[i] / t->after[i];
        after[i] = t->after[i];
    }
    qsort(ratio, (size_t)n, sizeof *ratio, by_value);
    qsort(after, (size_t)n, sizeof *after, by_value);
    snprintf(text, sizeof text, "%s", what);
    printf("%-11s %-60s %9.1f %9.1f %7.3f  %.3f - %.3f of %2d  %s\n", s->name, text,
           n_tokens / after[n / 2], n_tokens / (after[n / 2] * ratio[n / 2]), ratio[n / 2],
           ratio[n / 4], ratio[n - 1 - n / 4], n, wanted);
    fflush(stdout);
}

/* ---- receipts -------------------------------------------------------------------------------- */

static void receipts_of(const struct subject *s, const struct run *run, int n, json_t **json) {
    struct receipt_source source = {s->files, KV_BFP16, &s->generator};
    struct error err;
    for (int i = 0; i < n; i++) {
        json[i] = receipt_of(&source, &run->requests[i], &run->engine.answers[i].sequence, &err);
        must(!json[i], &err);
    }
}

/* Seconds to verify n of them together. */
static double verify(struct subject *s, json_t *const *json, int n) {
    struct receipt_source source = {s->files, KV_BFP16, &s->generator};
    int budget = n > 1 ? 4096 : 512;
    struct read_along how = {.generator = &s->generator, .scheduler = {n, budget, budget, true}};
    struct receipt receipts[TOGETHER];
    struct error err;
    double began = seconds_now();
    for (int i = 0; i < n; i++)
        receipt_read(&receipts[i], &source, json[i]);
    must(receipts_verify(receipts, n, &how, 16, &err), &err);
    double seconds = seconds_now() - began;
    for (int i = 0; i < n; i++) {
        if (receipts[i].reason != RECEIPT_VERIFIED)
            fail(receipts[i].why.text);
        receipt_free(&receipts[i]);
    }
    return seconds;
}

/* How long n rows are hashed. */
static void bench_hashes(struct subject *s, int n) {
    struct device *dev = s->dev;
    struct error err;
    struct fault fault;
    size_t vocab = (size_t)s->model.config.vocab_size, bytes = sizeof(float) * (size_t)n * vocab;
    enum { TIMES = 10, TRIES = 21 };
    float *rows = dev->ops->alloc(dev, bytes, "logits", &err);
    unsigned char *hashes = dev->ops->alloc(dev, SHA256_BYTES * (size_t)n, "hashes", &err);
    double seconds[TRIES];
    must(!rows || !hashes, &err);
    for (int i = 0; i < TRIES; i++) {
        double began = seconds_now();
        for (int j = 0; j < TIMES; j++) {
            dev->ops->hash_rows(dev, hashes, rows, n, (int)vocab);
            must(dev->ops->hash_wait && dev->ops->hash_wait(dev, &err), &err);
        }
        must(dev->ops->sync(dev, &fault, &err), &err);
        seconds[i] = (seconds_now() - began) / TIMES;
    }
    qsort(seconds, TRIES, sizeof *seconds, by_value);
    printf("%-11s hashing %d rows of logits: %.1f us\n", s->name, n, 1e6 * seconds[TRIES / 2]);
    dev->ops->free(dev, rows, bytes);
    dev->ops->free(dev, hashes, SHA256_BYTES * (size_t)n);
}

/* n answers together, of which the first is also written alone. */
static void bench_answers(struct subject *s, int n, float temperature) {
    struct turns cost = {0}, check = {0}, alone = {0};
    struct question q[TOGETHER];
    char what[80];
    for (int i = 0; i < n; i++)
        q[i] = random_question(s, PROMPT, temperature, 100 + (uint32_t)i);
    for (double began = seconds_now(); goes_on(s, &cost, began);) {
        struct run runs[2], one;
        json_t *json[TOGETHER];
        for (int i = 0; i < 2; i++) { /* with receipts is run 1, and every other time first */
            int with = (i + cost.n) % 2;
            answer(s, q, n, with, NULL, &runs[with]);
        }
        receipts_of(s, &runs[1], n, json);
        double seconds = verify(s, json, n);
        add_turn(&cost, n > 1 ? runs[0].all : runs[0].decoding,
                 n > 1 ? runs[1].all : runs[1].decoding);
        add_turn(&check, runs[0].all, seconds);
        if (n > 1) {
            answer(s, q, 1, false, NULL, &one);
            add_turn(&alone, n * one.all, seconds);
            run_end(&one);
        }
        for (int i = 0; i < n; i++)
            json_decref(json[i]);
        run_end(&runs[0]);
        run_end(&runs[1]);
    }
    int used = snprintf(what, sizeof what, "%d at once, temperature %g: ", n, (double)temperature);
    char *rest = what + used;
    size_t room = sizeof what - (size_t)used;
    snprintf(rest, room, "with receipts, beside without");
    show(s, what, &cost, n * (n > 1 ? ANSWER : ANSWER - 1),
         &gpu_ops ? "at least 0.95" : "at least 0.97");
    snprintf(rest, room, "verifying, beside generating");
    show(s, what, &check, n * ANSWER, n > 1 ? "" : "at least 5");
    snprintf(rest, room, "verifying, beside one by one");
    if (n > 1)
        show(s, what, &alone, n * ANSWER, "at least 20");
    for (int i = 0; i < n; i++)
        free(q[i].ids);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

static void must_be_same(const struct run *a, const struct run *b) {
    const struct sequence *x = &a->engine.answers->sequence, *y = &b->engine.answers->sequence;
    if (x->n_tokens != y->n_tokens ||
        memcmp(x->tokens, y->tokens, sizeof *x->tokens * (size_t)x->n_tokens))
        fail("drafts change the answer");
}

/* All questions, with and without drafts. */
static void bench_drafts(struct subject *s, const char *what, const struct question *questions,
                         int n, const char *wanted) {
    struct turns turns = {0};
    long proposed = 0, accepted = 0, n_tokens = 0;
    char text[80];
    struct error err;
    struct drafter *drafter = ngram_drafter_new(&s->model.config, &err);
    must(!drafter, &err);
    for (double began = seconds_now(); goes_on(s, &turns, began);) {
        double seconds[2] = {0};
        proposed = accepted = n_tokens = 0;
        for (int j = 0; j < n; j++) {
            struct run runs[2];
            for (int i = 0; i < 2; i++) {
                int with = (i + turns.n) % 2;
                answer(s, &questions[j], 1, false, with ? drafter : NULL, &runs[with]);
                seconds[with] += runs[with].decoding;
            }
            must_be_same(&runs[0], &runs[1]);
            proposed += runs[1].engine.proposed;
            accepted += runs[1].engine.accepted;
            n_tokens += sequence_new_tokens(&runs[0].engine.answers->sequence) - 1;
            run_end(&runs[0]);
            run_end(&runs[1]);
        }
        add_turn(&turns, seconds[0], seconds[1]);
    }
    snprintf(text, sizeof text, "%s (%ld of %ld accepted)", what, accepted, proposed);
    show(s, text, &turns, (double)n_tokens, wanted);
    drafter_free(drafter);
}

/* "Repeat after me: " and sentences of data/prompts/document.jsonl; the model says the last again
 * and again. */
static int quotes(struct question *out, const struct tokenizer *tokenizer) {
    static const char *const sentences[] = {
        "In the first room stand the tall clocks, twelve of them, in a row along the wall.",
        "Anton repairs the clocks, and Felix sells the tickets and tells the stories.",
        "In the second room are the clocks that make music.",
        "One night in March the lights went out in the whole valley.",
        "A doctor was on the way to a farm where a child was ill.",
        "So Anton opened all the windows of the second room and let every clock play its song.",
        "one two three four five six seven eight nine ten.",
    };
    int n = 0;
    for (size_t i = 0; i < sizeof sentences / sizeof *sentences; i++) {
        char prompt[512];
        struct error err;
        size_t n_ids;
        snprintf(prompt, sizeof prompt,
                 "<|im_start|>user\nRepeat after me: %s<|im_end|>\n<|im_start|>assistant\n",
                 sentences[i]);
        out[n] = (struct question){.max_new = 200, .sampling = {.top_p = 1}};
        must(tokenizer_encode(tokenizer, prompt, strlen(prompt), true, &out[n].ids, &n_ids, &err),
             &err);
        out[n++].n = (int)n_ids;
    }
    return n;
}

static void free_questions(struct question *q, int n) {
    for (int i = 0; i < n; i++)
        free(q[i].ids);
}

static void bench_random_text(struct subject *s, int n) {
    struct question q[4];
    for (int i = 0; i < n; i++)
        q[i] = random_question(s, 64, 1, 11 + (uint32_t)i);
    bench_drafts(s, "random text, drafts beside none", q, n, "at least 0.95");
    free_questions(q, n);
    q[0] = random_question(s, 64, 0, 11);
    bench_drafts(s, "greedy from a random prompt, drafts beside none", q, 1, "");
    free_questions(q, 1);
}

static void start(struct subject *s, const char *folder) {
    struct error err;
    struct device_options options = {.n_threads = n_threads};
    struct kv_pool_options pool = {.block_size = 16,
                                   .n_blocks = (&gpu_ops ? TOGETHER : 1) * (512 / 16)};
    const struct ops *ops = &gpu_ops ? &gpu_ops : &ref_ops;
    s->dev = ops->open(&options, &err);
    if (!s->dev)
        fail(err.text);
    must(model_load(&s->model, s->dev, folder, NULL, &err) ||
             generator_start(&s->generator, &s->model, &err) ||
             kv_pool_start(&s->pool, &s->model, &pool, &err),
         &err);
    s->generator.fused = s->generator.ids_only = true;
}

static void end(struct subject *s) {
    kv_pool_end(&s->pool);
    generator_end(&s->generator);
    model_free(&s->model);
    s->dev->ops->close(s->dev);
}

/* The quotes, with the shipped model's answers behind them. */
static int quotes_told(struct question *q) {
    struct subject s = {0};
    struct tokenizer *tokenizer;
    struct error err;
    start(&s, "data/model");
    must(tokenizer_load(&tokenizer, "data/model", &err), &err);
    int n = quotes(q, tokenizer);
    for (int i = 0; i < n; i++) {
        struct run run;
        answer(&s, &q[i], 1, false, NULL, &run);
        const struct sequence *x = &run.engine.answers->sequence;
        size_t bytes = sizeof *q[i].ids * (size_t)x->n_tokens;
        q[i].n_told = x->n_tokens;
        q[i].max_new = sequence_new_tokens(x);
        free(q[i].ids);
        q[i].ids = memcpy(malloc(bytes), x->tokens, bytes);
        run_end(&run);
    }
    tokenizer_free(tokenizer);
    end(&s);
    return n;
}

static void bench(const char *name, const char *folder, double seconds, const char *part) {
    struct subject s = {.files = json_object(), .name = name, .seconds = seconds};
    bool shipped = !strcmp(name, "shipped");
    start(&s, folder);
    if (strstr(part, "together") && &gpu_ops) {
        bench_hashes(&s, TOGETHER);
        bench_answers(&s, TOGETHER, 0);
        bench_answers(&s, TOGETHER, 1);
    }
    if (strstr(part, "answers")) {
        bench_hashes(&s, 1);
        bench_answers(&s, 1, 0);
        bench_answers(&s, 1, 1);
    }
    if (strstr(part, "quotes")) {
        struct question q[MOST_TEXTS];
        int n = quotes_told(q);
        if (!shipped)
            tell(s.dev);
        bench_drafts(&s, "quotes, drafts beside none", q, n - 1, "at least 1.8");
        bench_drafts(&s, "a list that repeats itself, drafts beside none", q + n - 1, 1, "");
        free_questions(q, n);
    }
    if (strstr(part, "random"))
        bench_random_text(&s, shipped ? 4 : 1);
    end(&s);
    json_decref(s.files);
}

/* bench_receipts [shipped|qwen3-0.6b|all|FOLDER [PARTS [SECONDS [THREADS]]]]: only one of the
 * models, or another one; some of the parts together,answers,quotes,random; for each row so many
 * seconds; with so many threads. */
int main(int argc, char **argv) {
    char folder[128], path[160];
    const char *only = argc > 1 ? argv[1] : "all";
    const char *part = argc > 2 ? argv[2] : "together,answers,quotes,random";
    double seconds = argc > 3 ? atof(argv[3]) : 10;
    n_threads = argc > 4 ? atoi(argv[4]) : 2;
    printf("%-11s %-60s %9s %9s %7s  %s\n", "model", "", "tokens/s", "beside", "ratio",
           "quartiles, turns     wanted");
    if (strchr(only, '/'))
        bench(basename(only), only, seconds, part);
    else if (strcmp(only, "qwen3-0.6b"))
        bench("shipped", "data/model", seconds, part);
    if (!strcmp(only, "shipped") || strchr(only, '/'))
        return 0;
    write_checkpoint(folder, path);
    bench("qwen3-0.6b", folder, seconds, part);
    remove_checkpoint(folder, path);
    return 0;
}
