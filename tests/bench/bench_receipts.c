/*
 * bench_receipts - phase 13, each beside what it replaces, in turns:
 *
 * - answers of 256 tokens with receipts, beside those without;
 * - the verification of a receipt, beside the generation of its answer; on a GPU also of 64 answers
 *   at once, beside their generation at once and one after the other;
 * - decoding with drafts of n-grams, beside decoding without: answers that quote a text, long
 *   answers, and random text, in which nothing comes twice but by accident.
 *
 * Two models: the shipped one, and one with the shape of Qwen3-0.6B and random weights. That one has
 * nothing to quote, so it is told to: what it draws is replaced by the shipped model's answer. On a
 * CPU time is that of the processor, of all threads together, which other work on the machine changes
 * least; build/gpu/bench/bench_receipts runs on a GPU and takes the time of the clock. No logits
 * are brought to the host.
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

enum { ANSWER = 256, PROMPT = 32, TOGETHER = 64, MOST_ROUNDS = 5, MOST_TEXTS = 12 };

struct subject {
    struct device *dev;
    struct model model;
    struct generator generator;
    struct kv_pool pool; /* one for all: a recording of a pass is of one pool */
    json_t *files; /* of receipts: none */
    int rounds;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
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

/* ---- answers ---------------------------------------------------------------------------------- */

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(&gpu_ops ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
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
    struct question q = {
        malloc(sizeof *q.ids * (size_t)n), n, ANSWER, true, {temperature, 0, 1, seed, true, 0}, 0};
    for (int i = 0; i < n; i++)
        q.ids[i] = (int32_t)num_draw(seed, 7, (uint32_t)i, (uint64_t)s->model.config.vocab_size);
    return q;
}

static void show(const char *model, const char *what, double per_second, double beside,
                 double ratio, const char *wanted) {
    printf("%-12s %-58s %9.1f %9.1f %7.3f  %s\n", model, what, per_second, beside, ratio, wanted);
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

static void bench_answers(struct subject *s, const char *name, const char *how, float temperature) {
    struct question q = random_question(s, PROMPT, temperature, 5);
    double without[MOST_ROUNDS], with[MOST_ROUNDS], cost[MOST_ROUNDS], check[MOST_ROUNDS],
        gain[MOST_ROUNDS];
    char what[80];
    for (int i = 0; i < s->rounds; i++) {
        struct run a, b;
        json_t *json;
        answer(s, &q, 1, false, NULL, &a);
        answer(s, &q, 1, true, NULL, &b);
        receipts_of(s, &b, 1, &json);
        without[i] = a.decoding;
        with[i] = b.decoding;
        cost[i] = with[i] / without[i];
        check[i] = verify(s, &json, 1);
        gain[i] = a.all / check[i];
        json_decref(json);
        run_end(&a);
        run_end(&b);
    }
    int n = s->rounds;
    snprintf(what, sizeof what, "%s: with receipts, beside without", how);
    show(name, what, (ANSWER - 1) / median(with, n), (ANSWER - 1) / median(without, n),
         1 / median(cost, n), "at least 0.97");
    snprintf(what, sizeof what, "%s: verifying, beside generating", how);
    show(name, what, ANSWER / median(check, n), ANSWER / (median(check, n) * median(gain, n)),
         median(gain, n), "at least 5");
    free(q.ids);
}

/* ---- many answers together ------------------------------------------------------------------- */

static void bench_together(struct subject *s, const char *name, float temperature) {
    struct question q[TOGETHER];
    double without[MOST_ROUNDS], with[MOST_ROUNDS], check[MOST_ROUNDS], alone[MOST_ROUNDS];
    char what[80];
    for (int i = 0; i < TOGETHER; i++)
        q[i] = random_question(s, PROMPT, temperature, 100 + (uint32_t)i);
    for (int i = 0; i < s->rounds; i++) {
        struct run one, a, b;
        json_t *json[TOGETHER];
        answer(s, q, 1, false, NULL, &one);
        answer(s, q, TOGETHER, false, NULL, &a);
        answer(s, q, TOGETHER, true, NULL, &b);
        receipts_of(s, &b, TOGETHER, json);
        alone[i] = TOGETHER * one.all;
        without[i] = a.all;
        with[i] = b.all;
        check[i] = verify(s, json, TOGETHER);
        for (int j = 0; j < TOGETHER; j++)
            json_decref(json[j]);
        run_end(&one);
        run_end(&a);
        run_end(&b);
    }
    int n = s->rounds, tokens = TOGETHER * ANSWER;
    double a = median(alone, n), b = median(without, n), c = median(with, n), d = median(check, n);
    snprintf(what, sizeof what, "64 together, temperature %g: ", (double)temperature);
    size_t used = strlen(what);
    snprintf(what + used, sizeof what - used, "with receipts, beside without");
    show(name, what, tokens / c, tokens / b, b / c, "at least 0.95");
    snprintf(what + used, sizeof what - used, "verifying, beside generating");
    show(name, what, tokens / d, tokens / b, b / d, "");
    snprintf(what + used, sizeof what - used, "verifying, beside one by one");
    show(name, what, tokens / d, tokens / a, a / d, "at least 20");
    for (int i = 0; i < TOGETHER; i++)
        free(q[i].ids);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

/* All questions, with and without drafts. */
static void bench_drafts(struct subject *s, const char *name, const char *what,
                         const struct question *questions, int n, const char *wanted) {
    double without[MOST_ROUNDS], with[MOST_ROUNDS], ratio[MOST_ROUNDS];
    long proposed = 0, accepted = 0, n_tokens = 0;
    char text[80];
    struct error err;
    struct drafter *drafter = ngram_drafter_new(&s->model.config, &err);
    must(!drafter, &err);
    for (int i = 0; i < s->rounds; i++) {
        without[i] = with[i] = 0;
        proposed = accepted = n_tokens = 0;
        for (int j = 0; j < n; j++) {
            struct run a, b;
            answer(s, &questions[j], 1, false, NULL, &a);
            answer(s, &questions[j], 1, false, drafter, &b);
            const struct sequence *x = &a.engine.answers->sequence,
                                  *y = &b.engine.answers->sequence;
            if (x->n_tokens != y->n_tokens ||
                memcmp(x->tokens, y->tokens, sizeof *x->tokens * (size_t)x->n_tokens))
                fail("drafts change the answer");
            without[i] += a.decoding;
            with[i] += b.decoding;
            proposed += b.engine.proposed;
            accepted += b.engine.accepted;
            n_tokens += sequence_new_tokens(x) - 1;
            run_end(&a);
            run_end(&b);
        }
        ratio[i] = without[i] / with[i];
    }
    snprintf(text, sizeof text, "%s (%ld of %ld accepted)", what, accepted, proposed);
    double r = median(ratio, s->rounds), w = median(with, s->rounds);
    show(name, text, (double)n_tokens / w, (double)n_tokens / (w * r), r, wanted);
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

static void bench_random_text(struct subject *s, const char *name, int n) {
    struct question q[4];
    for (int i = 0; i < n; i++)
        q[i] = random_question(s, 64, 1, 11 + (uint32_t)i);
    bench_drafts(s, name, "random text, drafts beside none", q, n, "at least 0.95");
    free_questions(q, n);
    q[0] = random_question(s, 64, 0, 11);
    bench_drafts(s, name, "greedy from a random prompt, drafts beside none", q, 1, "");
    free_questions(q, 1);
}

static void start(struct subject *s, const char *folder) {
    struct error err;
    struct device_options options = {.n_threads = 2};
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

static void bench(const char *name, const char *folder, int rounds, bool shipped,
                  const char *part) {
    struct subject s = {.files = json_object(), .rounds = rounds};
    start(&s, folder);
    if (strcmp(part, "drafts") && &gpu_ops) {
        bench_together(&s, name, 0);
        bench_together(&s, name, 1);
    }
    if (strcmp(part, "drafts")) {
        bench_answers(&s, name, "greedy", 0);
        bench_answers(&s, name, "temperature 1", 1);
    }
    if (strcmp(part, "answers")) {
        struct question q[MOST_TEXTS];
        int n = quotes_told(q);
        if (!shipped)
            tell(s.dev);
        bench_drafts(&s, name, "quotes, drafts beside none", q, n - 1, "at least 1.8");
        bench_drafts(&s, name, "a list that repeats itself, drafts beside none", q + n - 1, 1, "");
        free_questions(q, n);
        bench_random_text(&s, name, shipped ? 4 : 1);
    }
    end(&s);
    json_decref(s.files);
}

/* bench_receipts [shipped|qwen3-0.6b|FOLDER [answers|drafts]]: only one of the models, or another
 * one, and a part. */
int main(int argc, char **argv) {
    char folder[128], path[160];
    const char *only = argc > 1 ? argv[1] : "", *part = argc > 2 ? argv[2] : "";
    printf("%-12s %-58s %9s %9s %7s  %s\n", "model", "", "tokens/s", "beside", "ratio", "wanted");
    int rounds = &gpu_ops ? 3 : 1;
    if (strchr(only, '/'))
        bench(basename(only), only, rounds, false, part);
    else if (strcmp(only, "qwen3-0.6b"))
        bench("shipped", "data/model", MOST_ROUNDS, true, part);
    if (!strcmp(only, "shipped") || strchr(only, '/'))
        return 0;
    write_checkpoint(folder, path);
    bench("qwen3-0.6b", folder, rounds, false, part);
    remove_checkpoint(folder, path);
    return 0;
}
