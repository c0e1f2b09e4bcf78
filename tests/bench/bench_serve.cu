/*
 * bench_serve - decoding many sequences of the shipped model in one pass (phase 8): tokens per
 * second of all, op by op and with the pass replayed as a CUDA graph. A step is as the engine runs
 * it: upload, pass, sample, download the tokens. First a few steps with the logits, too: both ways
 * must have the same fingerprints.
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

enum { PROMPT = 24, STEPS = 100, CHECKED_STEPS = 4, WARM_UP = 4 };

static struct model model;
static struct generator generator;
static struct error err;

static void check_call(int result, const char *what) {
    if (!result)
        return;
    fprintf(stderr, "%s: %s\n", what, err.text);
    exit(2);
}

struct result {
    double tokens_per_second;
    uint64_t fingerprint; /* of all sequences */
};

static struct result run(int n, bool graphs, bool timed) {
    int steps = timed ? STEPS : CHECKED_STEPS;
    struct kv_pool pool;
    struct kv_pool_options options = {16, n * ((PROMPT + STEPS + WARM_UP + 32) / 16), 0};
    std::vector<struct sequence> sequences((size_t)n);
    std::vector<struct kv_paged> caches((size_t)n);
    std::vector<struct pass_part> parts((size_t)n);
    struct sampling_options greedy = {};
    greedy.top_p = 1;
    check_call(kv_pool_start(&pool, &model, &options, &err), "the pool");
    workspace_use_graphs(generator.ws, graphs);
    generator.ids_only = timed;
    for (int i = 0; i < n; i++) {
        int32_t prompt[PROMPT];
        for (int j = 0; j < PROMPT; j++)
            prompt[j] = (i * 37 + j * 11) % 4000 + 10;
        struct sequence *s = &sequences[(size_t)i];
        check_call(sequence_start(s, (uint32_t)i, &greedy, &err), "a sequence");
        check_call(sequence_ask(s, prompt, PROMPT, STEPS + WARM_UP + 8, &err), "a sequence");
        check_call(kv_paged_start(&caches[(size_t)i], &pool, NULL, &err), "a cache");
    }
    double seconds = 0;
    for (int step = 0; step <= steps + WARM_UP; step++) {
        double begin = clock_now();
        for (int i = 0; i < n; i++) {
            struct sequence *s = &sequences[(size_t)i];
            parts[(size_t)i] = {s, &caches[(size_t)i].base, s->n_cached, s->n_tokens, 0, true};
        }
        check_call(pass_run(&generator, parts.data(), n, &err), "a pass");
        for (int i = 0; i < n; i++)
            kv_paged_stored(&caches[(size_t)i], sequences[(size_t)i].tokens,
                            sequences[(size_t)i].n_cached);
        if (step > WARM_UP)
            seconds += clock_now() - begin;
    }
    struct fingerprint all;
    check_call(fingerprint_start(&all, &err), "a fingerprint");
    for (int i = 0; i < n; i++) {
        fingerprint_add_sequence(&all, fingerprint_value(&sequences[(size_t)i].fingerprint));
        kv_paged_end(&caches[(size_t)i]);
        sequence_end(&sequences[(size_t)i]);
    }
    struct result r = {(double)n * steps / seconds, fingerprint_value(&all)};
    fingerprint_end(&all);
    kv_pool_end(&pool);
    return r;
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
    double one = 0;
    printf("\nsequences  op by op tok/s  graph tok/s  graph ms/step  times op by op  times one\n");
    for (int n : {1, 2, 8, 16, 64, 256}) {
        if (run(n, false, false).fingerprint != run(n, true, false).fingerprint) {
            fprintf(stderr, "%d sequences: the graph has other bits. This is a bug\n", n);
            return 2;
        }
        struct result plain = run(n, false, true), graph = run(n, true, true);
        one = n == 1 ? graph.tokens_per_second : one;
        printf("%9d %15.0f %12.0f %14.3f %15.2f %10.1f\n", n, plain.tokens_per_second,
               graph.tokens_per_second, 1e3 * n / graph.tokens_per_second,
               graph.tokens_per_second / plain.tokens_per_second, graph.tokens_per_second / one);
        fflush(stdout);
    }
    return 0; /* the process ends; its device memory goes with it */
}
