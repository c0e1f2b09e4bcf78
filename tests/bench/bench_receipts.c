/*
 * bench_receipts - phase 13 on this CPU, each beside what it replaces, in turns:
 *
 * - answers of 256 tokens with receipts, beside those without;
 * - the verification of a receipt, beside the generation of its answer;
 * - decoding with drafts of n-grams, beside decoding without: answers that quote a text, long
 *   answers, and random text, in which nothing comes twice but by accident.
 *
 * Two models: the shipped one, and one with the shape of Qwen3-0.6B and random weights. Time is
 * that of the processor, of all threads together, which other work on the machine changes least.
 */
#include "model/numerics.h"
#include "model/tokenizer/tokenizer.h"
#include "ref/ref.h"
#include "scheduler/draft.h"
#include "scheduler/generate.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/receipt.h"
#include "tests/bench/large_checkpoint.h"

#include <string.h>
#include <time.h>

enum { ANSWER = 256, MOST_ROUNDS = 5, MOST_TEXTS = 12 };

struct subject {
    struct device *dev;
    struct model model;
    struct generator generator;
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
    struct sampling_options sampling;
};

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int note_first(void *context, const struct sequence *s, const float *logits,
                      struct error *err) {
    (void)logits, (void)err;
    if (sequence_new_tokens(s) == 1)
        *(double *)context = cpu_seconds();
    return 0;
}

/* Answers it alone; the caller ends the sequence. all, decoding: seconds from the question to the
 * last token, and from the first token to it. */
static struct sequence answer(struct subject *s, const struct question *q, bool chain, double *all,
                              double *decoding) {
    double begin = cpu_seconds(), first = 0;
    struct error err;
    struct sequence a;
    struct kv_cache *cache = kv_static_new(&s->model, q->n + q->max_new, &err);
    must(!cache || sequence_start(&a, 0, &q->sampling, &err) ||
             sequence_add_prompt(&a, q->ids, q->n, q->max_new, &err),
         &err);
    if (chain && !(a.chain = logits_chain_new(&err)))
        fail(err.text);
    s->generator.on_token = note_first;
    s->generator.on_token_context = &first;
    must(generate(&s->generator, &a, cache, &err), &err);
    *all = cpu_seconds() - begin;
    *decoding = cpu_seconds() - first;
    kv_cache_free(cache);
    return a;
}

static struct question random_question(const struct subject *s, int n, float temperature,
                                       uint32_t seed) {
    struct question q = {
        malloc(sizeof *q.ids * (size_t)n), n, ANSWER, {temperature, 0, 1, seed, true, 0}};
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

static json_t *receipt_json(const struct subject *s, const struct sequence *a) {
    struct receipt_source source = {s->files, KV_BFP16, &s->generator};
    struct request request = {0};
    struct error err;
    json_t *json = receipt_of(&source, &request, a, &err);
    must(!json, &err);
    return json;
}

/* Seconds to verify it. */
static double verify(struct subject *s, const json_t *json) {
    struct receipt_source source = {s->files, KV_BFP16, &s->generator};
    struct read_along how = {.generator = &s->generator, .scheduler = {1, 512, 512, true}};
    struct receipt receipt;
    struct error err;
    double began = cpu_seconds();
    receipt_read(&receipt, &source, json);
    must(receipts_verify(&receipt, 1, &how, 16, &err), &err);
    double seconds = cpu_seconds() - began;
    if (receipt.reason != RECEIPT_VERIFIED)
        fail(receipt.why.text);
    receipt_free(&receipt);
    return seconds;
}

static void bench_answers(struct subject *s, const char *name, const char *how, float temperature) {
    struct question q = random_question(s, 32, temperature, 5);
    double without[MOST_ROUNDS], with[MOST_ROUNDS], cost[MOST_ROUNDS], check[MOST_ROUNDS],
        gain[MOST_ROUNDS];
    char what[80];
    for (int i = 0; i < s->rounds; i++) {
        double all, ignored;
        struct sequence a = answer(s, &q, false, &all, &without[i]);
        struct sequence b = answer(s, &q, true, &ignored, &with[i]);
        json_t *json = receipt_json(s, &b);
        cost[i] = with[i] / without[i];
        check[i] = verify(s, json);
        gain[i] = all / check[i];
        json_decref(json);
        sequence_end(&a);
        sequence_end(&b);
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
            double ignored, plain, drafted;
            struct sequence a = answer(s, &questions[j], false, &ignored, &plain);
            s->generator.drafter = drafter;
            struct sequence b = answer(s, &questions[j], false, &ignored, &drafted);
            s->generator.drafter = NULL;
            if (fingerprint_value(&a.fingerprint) != fingerprint_value(&b.fingerprint))
                fail("drafts change the bits");
            without[i] += plain;
            with[i] += drafted;
            proposed += b.drafting.proposed;
            accepted += b.drafting.accepted;
            n_tokens += sequence_new_tokens(&a) - 1;
            sequence_end(&a);
            sequence_end(&b);
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

static void bench(const char *name, const char *folder, int rounds, bool shipped,
                  const char *part) {
    struct error err;
    struct device_options options = {.n_threads = 2};
    struct subject s = {
        .dev = ref_ops.open(&options, &err), .files = json_object(), .rounds = rounds};
    if (!s.dev)
        fail(err.text);
    must(model_load(&s.model, s.dev, folder, NULL, &err) ||
             generator_start(&s.generator, &s.model, &err),
         &err);
    s.generator.ignore_stop = true;
    if (strcmp(part, "drafts")) {
        bench_answers(&s, name, "greedy", 0);
        bench_answers(&s, name, "temperature 1", 1);
    }
    if (strcmp(part, "answers"))
        bench_random_text(&s, name, shipped ? 4 : 1);
    if (strcmp(part, "answers") && shipped) {
        struct tokenizer *tokenizer;
        struct question q[MOST_TEXTS];
        must(tokenizer_load(&tokenizer, folder, &err), &err);
        int n = quotes(q, tokenizer);
        s.generator.ignore_stop = false;
        bench_drafts(&s, name, "quotes, drafts beside none", q, n - 1, "at least 1.8");
        bench_drafts(&s, name, "a list that repeats itself, drafts beside none", q + n - 1, 1, "");
        free_questions(q, n);
        tokenizer_free(tokenizer);
    }
    generator_end(&s.generator);
    model_free(&s.model);
    json_decref(s.files);
    ref_ops.close(s.dev);
}

/* bench_receipts [shipped|qwen3-0.6b [answers|drafts]]: only one of the models, and a part. */
int main(int argc, char **argv) {
    char folder[128], path[160];
    const char *only = argc > 1 ? argv[1] : "", *part = argc > 2 ? argv[2] : "";
    printf("%-12s %-58s %9s %9s %7s  %s\n", "model", "", "tokens/s", "beside", "ratio", "wanted");
    if (strcmp(only, "qwen3-0.6b"))
        bench("shipped", "data/model", MOST_ROUNDS, true, part);
    if (!strcmp(only, "shipped"))
        return 0;
    write_checkpoint(folder, path);
    bench("qwen3-0.6b", folder, 1, false, part);
    remove_checkpoint(folder, path);
    return 0;
}
