/* sampling.jsonl: random numbers, tokens drawn from rows of logits, their log-probabilities, and
 * fingerprints of several sequences. */
#include "tests/vectors.h"

#include "model/numerics.h"
#include "scheduler/fingerprint.h"
#include "scheduler/logprobs.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { MOST_LOGITS = 300 };

static void vector_u64(struct vectors *v, const char *name, uint64_t x) {
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, x);
    vector_text(v, name, text);
}

static void philox(struct vectors *v, const uint32_t words[6]) {
    struct philox_key key = {{words[0], words[1]}};
    struct philox_block counter = {{words[2], words[3], words[4], words[5]}};
    struct philox_block block = num_philox(key, counter);
    char text[60];
    vector_begin(v, "philox");
    snprintf(text, sizeof text, "%08" PRIx32 " %08" PRIx32, words[0], words[1]);
    vector_text(v, "key", text);
    snprintf(text, sizeof text, "%08" PRIx32 " %08" PRIx32 " %08" PRIx32 " %08" PRIx32, words[2],
             words[3], words[4], words[5]);
    vector_text(v, "counter", text);
    snprintf(text, sizeof text, "%08" PRIx32 " %08" PRIx32 " %08" PRIx32 " %08" PRIx32,
             block.word[0], block.word[1], block.word[2], block.word[3]);
    vector_text(v, "block", text);
    vector_end(v);
}

static void random_integer(struct vectors *v, uint64_t seed, uint32_t sample, uint32_t position,
                           uint64_t below) {
    vector_begin(v, "random");
    vector_u64(v, "seed", seed);
    vector_int(v, "sample", sample);
    vector_int(v, "position", position);
    vector_u64(v, "below", below);
    vector_u64(v, "y", num_draw(seed, sample, position, below));
    vector_end(v);
}

static void draw(struct vectors *v, const float *on_device, int n, const struct sampling *how) {
    struct test_device *t = &v->t;
    int32_t *id = device_poisoned(t, sizeof *id);
    t->ops->sample(t->dev, id, on_device, how, 1, n, 0);
    vector_begin(v, "draw");
    vector_float(v, "temperature", how->temperature);
    vector_int(v, "top_k", how->top_k);
    vector_float(v, "top_p", how->top_p);
    vector_u64(v, "seed", how->seed);
    vector_int(v, "sample", how->sample);
    vector_int(v, "position", how->position);
    if (!vector_fault(v)) {
        int32_t *drawn = device_get(t, id, sizeof *drawn);
        vector_int(v, "id", *drawn);
        free(drawn);
    }
    vector_end(v);
}

static void logprobs(struct vectors *v, const float *logits, int n) {
    float of_id[MOST_LOGITS];
    for (int i = 0; i < n; i++)
        logprobs_of(logits, n, i, &of_id[i], NULL, 0);
    vector_begin(v, "logprobs");
    vector_floats(v, "y", of_id, (size_t)n);
    vector_end(v);
}

static void weights(struct vectors *v, const float *logits, int n, float temperature) {
    float max = -INFINITY;
    int32_t w[MOST_LOGITS]; /* at most 2^30 */
    for (int i = 0; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < n; i++)
        w[i] = (int32_t)num_sampling_weight(logits[i], max, temperature);
    vector_begin(v, "weights");
    vector_float(v, "temperature", temperature);
    vector_i32(v, "w", w, (size_t)n);
    vector_end(v);
}

/* A row of logits, and what is made of it. */
static void row(struct vectors *v, const float *logits, int n) {
    struct test_device *t = &v->t;
    bool finite = true;
    vector_begin(v, "logits");
    vector_floats(v, "x", logits, (size_t)n);
    vector_end(v);
    const float *on_device = device_put(t, logits, sizeof *logits * (size_t)n);
    struct sampling how = {.top_p = 1};
    draw(v, on_device, n, &how);
    for (int i = 0; i < n; i++)
        finite = finite && isfinite(logits[i]);
    for (int i = 0; finite && i < 16; i++) {
        static const float temperatures[] = {1, 0.7f, 0.01f, 4};
        static const float top_p[] = {1, 0.9f, 0.5f, 0.999999f, 1e-9f};
        how.temperature = temperatures[i % 4];
        how.top_k = i % 3 ? 0 : i % 6 == 0 ? n / 2 : random_int(&v->random, 1, n + 1);
        how.top_p = top_p[i % 5];
        how.seed = i % 2 ? random_bits64(&v->random) : (uint64_t)i;
        how.sample = (uint32_t)random_int(&v->random, 0, 3);
        how.position = (uint32_t)random_int(&v->random, 1, 5000);
        draw(v, on_device, n, &how);
    }
    how = (struct sampling){.temperature = 1, .top_k = 4, .top_p = 0.6f};
    for (int i = 0; finite && n == 6 && i < 8; i++) {
        how.position++;
        draw(v, on_device, n, &how);
    }
    if (finite) {
        logprobs(v, logits, n);
        weights(v, logits, n < 60 ? n : 60, 0.7f);
        weights(v, logits, n < 60 ? n : 60, 1.3f);
    }
    device_clear(t);
}

static void rows(struct vectors *v) {
    static const float some[][6] = {
        {0, 0, 0, 0, 0, 0},                   /* equal ones, */
        {1, -0.0f, 2, 0, 2, 1},               /* and zeros of both signs */
        {-1e30f, 1e30f, 0, 1e30f, -1e30f, 1}, /* weights of 0 */
        {-20.5f, -20, -1, -1.5f, -20.7f, -21},
        {1, NAN, 2, 3, 4, 5},
        {1, 2, 3, INFINITY, 4, 5},
        {1, 2, 3, -INFINITY, 4, 5},
    };
    float x[MOST_LOGITS];
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        row(v, some[i], 6);
    row(v, some[1], 1);
    for (int i = 0; i < 3; i++) {
        int n = i ? 254 + i : 40;
        for (int j = 0; j < n; j++)
            x[j] = i == 1 ? roundf(random_normal(&v->random) * 16) / 4 /* many are equal */
                          : random_normal(&v->random) * 3;
        row(v, x, n);
    }
}

static void fingerprints(struct vectors *v, int n) {
    struct error err;
    struct fingerprint run;
    char each[64 * 17 + 1];
    if (fingerprint_start(&run, &err))
        abort();
    for (int i = 0; i < n; i++) {
        uint64_t one = random_bits64(&v->random);
        fingerprint_add_sequence(&run, one);
        snprintf(each + 17 * i, 18, "%016" PRIx64 "%s", one, i + 1 < n ? " " : "");
    }
    vector_begin(v, "fingerprints");
    vector_text(v, "each", each);
    vector_u64(v, "run", fingerprint_value(&run));
    vector_end(v);
    fingerprint_end(&run);
}

void vectors_sampling(struct vectors *v, const char *folder) {
    (void)folder;
    static const uint32_t words[][6] = {
        {0, 0, 0, 0, 0, 0},
        {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu},
        {0xa4093822u, 0x299f31d0u, 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
    };
    for (int i = 0; i < 3; i++)
        philox(v, words[i]);
    for (int i = 0; i < 12; i++) {
        uint64_t seed = random_bits64(&v->random), below = random_bits64(&v->random);
        random_integer(v, i < 4 ? (uint64_t)i : seed, (uint32_t)i % 3, (uint32_t)(i * i * i),
                       i ? below >> 5 * i : 1);
    }
    rows(v);
    fingerprints(v, 1);
    fingerprints(v, 2);
    fingerprints(v, 3);
    fingerprints(v, 16);
    fingerprints(v, 20);
    fingerprints(v, 64);
}
