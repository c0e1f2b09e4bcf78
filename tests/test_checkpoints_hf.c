/* The whole path from a Hugging Face folder to logits, against the logits that Hugging Face itself
 * computed: the folders of tests/fixtures/checkpoints, written by make_checkpoints.py there.
 *
 * Both sides round, differently, so here (and only where other software is the judge) there is a
 * tolerance. It is far below what any mistake in a layer, a bias or a rotary frequency does. */
#include "model/files/folder.h"
#include "model/files/safetensors.h"
#include "model/forward.h"
#include "scheduler/generate.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/kv_paged.h"
#include "tests/find_tensor.h"

#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER "tests/fixtures/checkpoints"

enum { N_LOGITS = 40, MOST_IDS = 300, N_GREEDY = 24 };

static const double max_relative_rms = 1e-3, min_cosine = 0.99999, clear_gap = 0.02;

/* What expected.safetensors holds. */
struct expected {
    int n_ids;
    int32_t ids[MOST_IDS];
    float *logits; /* [N_LOGITS, vocab] of the last positions */
    int vocab;
    bool has_greedy;
    int32_t greedy[N_GREEDY]; /* the tokens behind the ids */
};

static void read_expected(struct expected *out, const char *dir) {
    char path[200];
    struct safetensors *file = NULL;
    struct error err = {""};
    if (model_folder_path(path, sizeof path, dir, "expected.safetensors", &err) ||
        safetensors_open(&file, path, &err))
        fail_msg("%s", err.text);
    const struct tensor *ids = find_tensor(file, "ids"), *greedy = find_tensor(file, "greedy");
    const struct tensor *logits = find_tensor(file, "logits");
    assert_true(ids && !strcmp(ids->dtype_name, "I32") && ids->n_bytes <= sizeof out->ids);
    assert_true(logits && logits->n_dims == 2 && logits->shape[0] == N_LOGITS);
    assert_true(!greedy || greedy->n_bytes == sizeof out->greedy);
    memcpy(out->ids, ids->data, ids->n_bytes);
    out->n_ids = (int)ids->n_elements;
    out->has_greedy = greedy != NULL;
    if (greedy)
        memcpy(out->greedy, greedy->data, sizeof out->greedy);
    out->vocab = (int)logits->shape[1];
    out->logits = malloc(sizeof *out->logits * (size_t)logits->n_elements);
    assert_non_null(out->logits);
    assert_int_equal(tensor_read_f32(out->logits, logits, 0, logits->n_elements, &err), 0);
    safetensors_close(file);
}

/* Our logits of the last rows, from one batch without a cache, for free. */
static float *compute(struct model *m, const struct expected *want, const char *dir) {
    struct error err = {""};
    int32_t positions[MOST_IDS], drawn[N_LOGITS];
    struct sampling greedy[N_LOGITS] = {{0}};
    for (int i = 0; i < want->n_ids; i++)
        positions[i] = i;
    struct batch batch = {.n_tokens = want->n_ids,
                          .n_sequences = 1,
                          .n_logits = N_LOGITS,
                          .token_ids = want->ids,
                          .positions = positions,
                          .qo_indptr = (int32_t[]){0, want->n_ids},
                          .logit_rows = positions + want->n_ids - N_LOGITS};
    struct workspace *ws = workspace_new(m, &err);
    assert_non_null(ws);
    size_t bytes = sizeof(float) * N_LOGITS * (size_t)want->vocab;
    float *logits = malloc(bytes);
    assert_non_null(logits);
    const float *on_device = forward(m, ws, &batch, NULL, &err);
    if (!on_device || forward_finish(m, ws, &batch, greedy, drawn, &err))
        fail_msg("%s: %s", dir, err.text);
    m->dev->ops->download(m->dev, logits, on_device, bytes);
    workspace_free(ws);
    return logits;
}

/* The tokens behind the prompt, with a cache of each kind, the paged one read through its blocks,
 * too; all with one fingerprint. */
static void compare_greedy(struct model *m, const struct expected *want, const char *dir) {
    struct error err = {""};
    struct generator g;
    struct kv_pool pool;
    struct kv_paged paged[2];
    struct sequence s[4];
    struct kv_pool_options options = {.block_size = 16, .n_blocks = 64, .poison = true};
    assert_int_equal(generator_start(&g, m, &err), 0);
    assert_int_equal(kv_pool_start(&pool, m, &options, &err), 0);
    struct kv_cache *own[2] = {kv_static_new(m, 400, &err), kv_dynamic_new(m, 400, &err)};
    for (int i = 0; i < 4; i++) {
        if (i >= 2)
            assert_int_equal(kv_paged_start(&paged[i - 2], &pool, NULL, &err), 0);
        struct kv_cache *cache = i < 2 ? own[i] : &paged[i - 2].base;
        assert_int_equal(sequence_start(&s[i], 0, &(struct sampling_options){.top_p = 1}, &err), 0);
        assert_int_equal(sequence_add_prompt(&s[i], want->ids, want->n_ids, N_GREEDY, &err), 0);
        g.fused = i == 3;
        g.ignore_stop = true;
        if (generate(&g, &s[i], cache, &err))
            fail_msg("%s: %s", dir, err.text);
        for (int k = 0; k < N_GREEDY; k++)
            if (s[i].tokens[want->n_ids + k] != want->greedy[k])
                fail_msg("%s, cache %d, step %d: token %d, expected %d", dir, i, k,
                         s[i].tokens[want->n_ids + k], want->greedy[k]);
        assert_true(fingerprint_value(&s[i].fingerprint) == fingerprint_value(&s[0].fingerprint));
    }
    for (int i = 0; i < 4; i++)
        sequence_end(&s[i]);
    for (int i = 0; i < 2; i++) {
        kv_cache_free(own[i]);
        kv_paged_end(&paged[i]);
    }
    kv_pool_end(&pool);
    generator_end(&g);
}

/* The index of the largest, and how far above the second it is. */
static int find_top(const float *x, int n, double *gap) {
    int top = 0;
    double second = -INFINITY;
    for (int i = 1; i < n; i++) {
        if (x[i] > x[top]) {
            second = (double)x[top];
            top = i;
        } else if ((double)x[i] > second) {
            second = (double)x[i];
        }
    }
    *gap = (double)x[top] - second;
    return top;
}

/* The worst of all rows compared so far. */
struct worst {
    double relative_rms, cosine;
};

static void compare_row(struct worst *worst, const float *want, const float *got, int n,
                        const char *dir, int row) {
    double difference = 0, want_square = 0, got_square = 0, product = 0, gap, unused;
    for (int i = 0; i < n; i++) {
        double w = (double)want[i], g = (double)got[i];
        difference += (g - w) * (g - w);
        want_square += w * w;
        got_square += g * g;
        product += w * g;
    }
    double relative_rms = sqrt(difference / want_square);
    double cosine = product / sqrt(want_square * got_square);
    /* Written so that a NaN fails. */
    if (!(relative_rms <= max_relative_rms) || !(cosine >= min_cosine))
        fail_msg("%s, position %d: relative RMS %.2e (at most %.0e), cosine %.7f (at least %.5f)",
                 dir, row, relative_rms, max_relative_rms, cosine, min_cosine);
    int want_top = find_top(want, n, &gap), got_top = find_top(got, n, &unused);
    if (gap > clear_gap && want_top != got_top)
        fail_msg("%s, position %d: token %d, expected %d, which leads by %.3f", dir, row, got_top,
                 want_top, gap);
    worst->relative_rms = fmax(worst->relative_rms, relative_rms);
    worst->cosine = fmin(worst->cosine, cosine);
}

static int n_windows; /* folders with a window so far */

static enum arch compare_folder(const char *dir) {
    struct error err = {""};
    struct device *dev = ref_ops.open(&(struct device_options){1}, &err);
    assert_non_null(dev);
    struct model m;
    if (model_load(&m, dev, dir, NULL, &err))
        fail_msg("%s", err.text);
    enum arch arch = m.config.arch;
    n_windows += m.config.window > 0;
    struct expected want;
    read_expected(&want, dir);
    assert_int_equal(want.vocab, m.config.vocab_size);
    float *got = compute(&m, &want, dir);
    struct worst worst = {0, 1};
    for (int i = 0; i < N_LOGITS; i++)
        compare_row(&worst, want.logits + (size_t)i * (size_t)want.vocab,
                    got + (size_t)i * (size_t)want.vocab, want.vocab, dir,
                    want.n_ids - N_LOGITS + i);
    print_message("%s: relative RMS at most %.1e, cosine at least %.8f\n", dir, worst.relative_rms,
                  worst.cosine);
    if (m.config.window) {
        assert_true(want.has_greedy);
        compare_greedy(&m, &want, dir);
    }
    free(got);
    free(want.logits);
    model_free(&m);
    ref_ops.close(dev);
    return arch;
}

static void test_logits_are_those_of_hugging_face(void **state) {
    (void)state;
    glob_t found;
    if (glob(FOLDER "/*/", GLOB_ERR, NULL, &found))
        fail_msg("no folder in %s; `python3 make_checkpoints.py .` there writes them", FOLDER);
    bool seen[3] = {false};
    for (size_t i = 0; i < found.gl_pathc; i++)
        seen[compare_folder(found.gl_pathv[i])] = true;
    globfree(&found);
    for (int i = 0; i < 3; i++)
        if (!seen[i])
            fail_msg("no folder in %s has architecture %d", FOLDER, i);
    assert_int_equal(n_windows, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_are_those_of_hugging_face),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
