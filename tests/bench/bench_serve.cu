/*
 * bench_serve - decoding many sequences of the shipped model in one pass (phase 8): tokens per
 * second of all, op by op, with the pass replayed as a CUDA graph, and as the engine chooses: that,
 * or all of it as one kernel (decode_step). A step is as the engine runs it: upload, pass, sample,
 * download the tokens. First a few steps with the logits, too: all ways must have the same
 * fingerprints. Then where the one kernel stops to pay. Then prompts: the pass until everybody's
 * first token is there (TTFT when all arrive at once), medians of FIRST_TOKENS.
 *
 *     bench_serve                the shipped model
 *     bench_serve qwen3-0.6b     that shape with random weights: for the speed only
 *     bench_serve llama-3-8b     the same
 *
 * serve_beside_transformers.py runs the two shapes beside Hugging Face transformers.
 */
#include "tests/bench/random_model.h"

extern "C" {
#include "scheduler/generate.h"
#include "scheduler/kv_paged.h"
#include "scheduler/pass.h"
}

enum { PROMPT = 24, STEPS = 100, CHECKED_STEPS = 4, WARM_UP = 4, FIRST_TOKENS = 9 };

static struct model model;
static struct generator generator;
static struct error err;

static void check_call(int result, const char *what) {
    if (!result)
        return;
    fprintf(stderr, "%s: %s\n", what, err.text);
    exit(2);
}

/* n sequences with a prompt each, over one pool. */
struct crowd {
    int n;
    struct kv_pool pool;
    std::vector<struct sequence> sequences;
    std::vector<struct kv_paged> caches;
    std::vector<struct pass_part> parts;
};

static void start(struct crowd *c, int n, int prompt, int answer) {
    struct kv_pool_options options = {16, n * ((prompt + answer + 31) / 16), 0};
    struct sampling_options greedy = {};
    greedy.top_p = 1;
    c->n = n;
    c->sequences.resize((size_t)n);
    c->caches.resize((size_t)n);
    c->parts.resize((size_t)n);
    check_call(kv_pool_start(&c->pool, &model, &options, &err), "the pool");
    std::vector<int32_t> ids((size_t)prompt);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < prompt; j++)
            ids[(size_t)j] = (i * 37 + j * 11) % 4000 + 10;
        struct sequence *s = &c->sequences[(size_t)i];
        check_call(sequence_start(s, (uint32_t)i, &greedy, &err), "a sequence");
        check_call(sequence_add_prompt(s, ids.data(), prompt, answer, &err), "a sequence");
        check_call(kv_paged_start(&c->caches[(size_t)i], &c->pool, NULL, &err), "a cache");
    }
}

static void end(struct crowd *c) {
    for (int i = 0; i < c->n; i++) {
        kv_paged_end(&c->caches[(size_t)i]);
        sequence_end(&c->sequences[(size_t)i]);
    }
    kv_pool_end(&c->pool);
}

/* One token more of everybody, as the engine does it. Returns the seconds that it took. */
static double step(struct crowd *c) {
    double begin = clock_now();
    for (int i = 0; i < c->n; i++) {
        struct sequence *s = &c->sequences[(size_t)i];
        c->parts[(size_t)i] = {s, &c->caches[(size_t)i].base, s->n_cached, s->n_tokens, 0, true};
    }
    check_call(pass_run(&generator, c->parts.data(), c->n, &err), "a pass");
    for (int i = 0; i < c->n; i++)
        kv_paged_stored(&c->caches[(size_t)i], c->sequences[(size_t)i].tokens,
                        c->sequences[(size_t)i].n_cached);
    return clock_now() - begin;
}

/* ---- decoding ---------------------------------------------------------------------------------
 */

struct result {
    double tokens_per_second;
    uint64_t fingerprint; /* of all sequences */
};

/* The ways to run a step: op by op, as a graph of these ops, and as decode_step has it. */
enum way { OP_BY_OP, GRAPH, AT_ONCE, AS_CHOSEN };

static struct result decode(int n, int prompt, enum way way, bool timed) {
    int steps = timed ? STEPS : CHECKED_STEPS;
    struct crowd c = {};
    double seconds = 0;
    workspace_use_graphs(generator.ws, way != OP_BY_OP);
    int version = way == GRAPH ? 1 : way == AT_ONCE ? 2 : 0;
    check_call(dev->ops->set_version(dev, "decode_step", version, &err), "decode_step");
    generator.ids_only = timed;
    start(&c, n, prompt, STEPS + WARM_UP + 8);
    for (int i = 0; i <= steps + WARM_UP; i++) {
        double s = step(&c);
        seconds += i > WARM_UP ? s : 0;
    }
    struct fingerprint all;
    check_call(fingerprint_start(&all, &err), "a fingerprint");
    for (int i = 0; i < n; i++)
        fingerprint_add_sequence(&all, fingerprint_value(&c.sequences[(size_t)i].fingerprint));
    struct result r = {(double)n * steps / seconds, fingerprint_value(&all)};
    fingerprint_end(&all);
    end(&c);
    check_call(dev->ops->set_version(dev, "decode_step", 0, &err), "decode_step");
    return r;
}

static void check_bits(int n, int prompt) {
    uint64_t want = decode(n, prompt, OP_BY_OP, false).fingerprint;
    for (enum way way : {GRAPH, AT_ONCE})
        if (decode(n, prompt, way, false).fingerprint != want) {
            fprintf(stderr, "%d sequences from %d tokens on, way %d: other bits. This is a bug\n",
                    n, prompt, way);
            exit(2);
        }
}

static void decode_table(void) {
    double one = 0;
    printf("\nsequences  op by op tok/s  graph tok/s  as chosen tok/s  ms/step  times op by op  "
           "times one\n");
    for (int n : {1, 2, 8, 16, 64, 256}) {
        check_bits(n, PROMPT);
        double plain = decode(n, PROMPT, OP_BY_OP, true).tokens_per_second;
        double graph = decode(n, PROMPT, GRAPH, true).tokens_per_second;
        double best = decode(n, PROMPT, AS_CHOSEN, true).tokens_per_second;
        one = n == 1 ? best : one;
        printf("%9d %15.0f %12.0f %16.0f %8.3f %15.2f %10.1f\n", n, plain, graph, best,
               1e3 * n / best, best / plain, best / one);
        fflush(stdout);
    }
}

/* Where decode_step stops to pay: its rule is made of this. */
static void length_table(void) {
    printf("\nsequences  from tokens on  graph ms/step  one kernel ms/step   ratio\n");
    for (int n : {1, 8, 32, 64, 128, 256})
        for (int prompt : {100, 400, 900, 1900, 3900}) {
            if (n * prompt > 130000 || prompt + STEPS + WARM_UP + 8 > model.config.max_positions)
                continue;
            check_bits(n, prompt);
            double graph = n / decode(n, prompt, GRAPH, true).tokens_per_second;
            double at_once = n / decode(n, prompt, AT_ONCE, true).tokens_per_second;
            printf("%9d %15d %14.3f %19.3f %7.2f\n", n, prompt, graph * 1e3, at_once * 1e3,
                   graph / at_once);
            fflush(stdout);
        }
}

/* ---- the first token --------------------------------------------------------------------------
 */

/* Median seconds of the pass that reads n prompts, until the first token of each is there. */
static double first_token(int n, int prompt) {
    std::vector<double> all;
    for (int i = 0; i <= FIRST_TOKENS; i++) {
        struct crowd c = {};
        start(&c, n, prompt, 1);
        double s = step(&c);
        if (i) /* the first time, memory is asked for */
            all.push_back(s);
        end(&c);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

static void first_token_table(void) {
    static const int cases[][2] = {{1, 128}, {1, 1024}, {8, 512}, {64, 128}, {256, 32}};
    printf("\n  prompts  of tokens  first token ms  prompt tok/s\n");
    for (const int *c : cases) {
        double s = first_token(c[0], c[1]);
        printf("%9d %10d %15.3f %13.0f\n", c[0], c[1], s * 1e3, c[0] * c[1] / s);
        fflush(stdout);
    }
}

static void get_model(const char *name) {
    if (!name) {
        check_call(model_load(&model, dev, "data/model", NULL, &err), "data/model");
        return;
    }
    for (const struct model_shape &shape : model_shapes)
        if (!strcmp(name, shape.name)) {
            printf("the shape of %s, random weights\n", name);
            return random_model(&model, &shape);
        }
    fprintf(stderr, "%s: a shape that is not known; see the head of bench_serve.cu\n", name);
    exit(2);
}

int main(int argc, char **argv) {
    open_gpu();
    get_model(argc > 1 ? argv[1] : NULL);
    check_call(generator_start(&generator, &model, &err), "the generator");
    generator.fused = generator.ignore_stop = true;
    decode_table();
    if (argc < 2)
        length_table();
    first_token_table();
    return 0; /* the process ends; its device memory goes with it */
}
