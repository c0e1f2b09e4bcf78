/*
 * test_golden - the shipped model against an independent float32 implementation (data/golden).
 *
 * Greedy ids must be equal up to the first step where that implementation's two best logits are
 * closer than 0.02, where float32 itself is undecided. Logits and hidden states: relative RMS at
 * most 1e-3 and cosine at least 0.99999, row by row.
 */
#include "model/files/json.h"
#include "model/files/safetensors.h"
#include "model/tokenizer/tokenizer.h"
#include "scheduler/generate.h"
#include "scheduler/kv_contiguous.h"
#include "tests/device.h"
#include "tests/find_tensor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UNDECIDED_GAP 0.02

struct fixture {
    struct device *dev;
    struct model model;
    struct tokenizer *tokenizer;
    struct safetensors *golden;
    json_t *prompts; /* a list: the lines of generations.jsonl */
};

static void must(int result, const struct error *err) {
    if (result)
        fail_msg("%s", err->text);
}

static json_t *read_lines(const char *path) {
    struct error err;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    json_t *list = json_array();
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    while ((n = getline(&line, &capacity, f)) > 0) {
        json_t *value = json_parse(line, (size_t)n, path, &err);
        assert_non_null(value);
        json_array_append_new(list, value);
    }
    free(line);
    fclose(f);
    return list;
}

static int set_up(void **state) {
    static struct fixture f;
    struct error err;
    struct device_options options = {0};
    f.dev = device_under_test()->open(&options, &err);
    assert_non_null(f.dev);
    must(model_load(&f.model, f.dev, "data/model", NULL, &err), &err);
    must(tokenizer_load(&f.tokenizer, "data/model", &err), &err);
    must(safetensors_open(&f.golden, "data/golden/logits.safetensors", &err), &err);
    f.prompts = read_lines("data/golden/generations.jsonl");
    assert_int_equal(json_array_size(f.prompts), 12);
    *state = &f;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    json_decref(f->prompts);
    safetensors_close(f->golden);
    tokenizer_free(f->tokenizer);
    model_free(&f->model);
    f->dev->ops->close(f->dev);
    return 0;
}

/* The ids under `field`, malloc'ed. */
static int32_t *ids_of(const json_t *object, const char *field, int *n) {
    const json_t *list = json_object_get(object, field);
    *n = (int)json_array_size(list);
    int32_t *ids = malloc(sizeof *ids * (size_t)*n);
    for (int i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return ids;
}

/* rows x cols numbers against the golden tensor of that name. */
static void assert_close(const struct fixture *f, const char *name, const float *got, int rows,
                         int cols) {
    struct error err;
    const struct tensor *t = find_tensor(f->golden, name);
    assert_non_null(t);
    assert_int_equal(t->n_elements, (int64_t)rows * cols);
    float *want = malloc(sizeof *want * (size_t)t->n_elements);
    must(tensor_read_f32(want, t, 0, t->n_elements, &err), &err);
    for (int r = 0; r < rows; r++) {
        double dd = 0, ww = 0, gg = 0, wg = 0;
        for (int c = 0; c < cols; c++) {
            double w = want[(size_t)r * (size_t)cols + (size_t)c];
            double g = got[(size_t)r * (size_t)cols + (size_t)c];
            dd += (g - w) * (g - w);
            ww += w * w;
            gg += g * g;
            wg += w * g;
        }
        if (!(sqrt(dd / ww) <= 1e-3 && wg / sqrt(ww * gg) >= 0.99999))
            fail_msg("%s, row %d: relative RMS %g, cosine %.7f", name, r, sqrt(dd / ww),
                     wg / sqrt(ww * gg));
    }
    free(want);
}

/* The template and the tokenizer give the golden prompts' ids. */
static void prompts_tokenize_to_the_golden_ids(void **state) {
    const struct fixture *f = *state;
    struct error err;
    size_t i;
    json_t *p;
    json_array_foreach(f->prompts, i, p) {
        const char *text = json_string_value(json_object_get(p, "templated"));
        int n_want;
        int32_t *want = ids_of(p, "prompt_ids", &n_want), *got;
        size_t n_got;
        must(tokenizer_encode(f->tokenizer, text, strlen(text), false, &got, &n_got, &err), &err);
        assert_int_equal(n_got, n_want);
        assert_memory_equal(got, want, sizeof *want * (size_t)n_want);
        free(got);
        free(want);
    }
}

/* What the token callback of one prompt compares and counts. */
struct comparison {
    const struct fixture *f;
    size_t prompt;
    const int32_t *want;
    const json_t *gaps;
    int n_want, compared;
    bool undecided;
};

static int compare_token(void *context, const struct sequence *s, const float *logits,
                         struct error *err) {
    struct comparison *c = context;
    int step = sequence_new_tokens(s) - 1;
    (void)err;
    if (step == 0) {
        char name[32];
        snprintf(name, sizeof name, "last_logits.%zu", c->prompt);
        assert_close(c->f, name, logits, 1, c->f->model.config.vocab_size);
    }
    if (json_number_value(json_array_get(c->gaps, (size_t)step)) < UNDECIDED_GAP)
        c->undecided = true;
    if (c->undecided)
        return 0;
    if (s->tokens[s->n_tokens - 1] != c->want[step])
        fail_msg("prompt %zu, step %d: drew %d, golden %d", c->prompt, step,
                 s->tokens[s->n_tokens - 1], c->want[step]);
    c->compared++;
    return 0;
}

static void greedy_ids_equal_the_goldens(void **state) {
    struct fixture *f = *state;
    struct error err;
    struct generator g;
    struct sampling_options greedy = {.top_p = 1};
    int compared = 0, steps = 0, to_the_end = 0;
    size_t i;
    json_t *p;
    must(generator_start(&g, &f->model, &err), &err);
    json_array_foreach(f->prompts, i, p) {
        int n_prompt, n_want;
        int32_t *prompt = ids_of(p, "prompt_ids", &n_prompt);
        int32_t *want = ids_of(p, "output_ids", &n_want);
        struct comparison c = {.f = f,
                               .prompt = i,
                               .want = want,
                               .n_want = n_want,
                               .gaps = json_object_get(p, "gaps")};
        struct sequence s;
        struct kv_cache *cache = kv_dynamic_new(&f->model, 4096, &err);
        g.on_token = compare_token;
        g.on_token_context = &c;
        must(sequence_start(&s, (uint32_t)i, &greedy, &err), &err);
        must(sequence_add_prompt(&s, prompt, n_prompt, 256, &err), &err);
        must(generate(&g, &s, cache, &err), &err);
        const char *finish = json_string_value(json_object_get(p, "finish_reason"));
        bool same = sequence_new_tokens(&s) == n_want &&
                    !memcmp(s.tokens + n_prompt, want, sizeof *want * (size_t)n_want) &&
                    !strcmp(finish, finish_name(s.finish));
        assert_true(same || c.undecided);
        to_the_end += same;
        compared += c.compared;
        steps += n_want;
        kv_cache_free(cache);
        sequence_end(&s);
        free(want);
        free(prompt);
    }
    generator_end(&g);
    print_message("%d of %d steps compared, all equal; %d of 12 prompts equal to the end\n",
                  compared, steps, to_the_end);
    assert_true(compared > 500);
}

static void see_hidden(void *context, enum tensor_id id, int layer, const float *x, int n_rows,
                       int n_cols) {
    const struct fixture *f = context;
    char name[32];
    int n_layers = f->model.config.n_layers;
    size_t bytes = sizeof(float) * (size_t)n_rows * (size_t)n_cols;
    float *host = malloc(bytes);
    assert_non_null(host);
    f->dev->ops->download(f->dev, host, x, bytes);
    if (id == TENSOR_EMBEDDING || (id == TENSOR_RESIDUAL && layer < n_layers - 1) ||
        id == TENSOR_FINAL_NORM) {
        int k = id == TENSOR_EMBEDDING ? 0 : id == TENSOR_FINAL_NORM ? n_layers : layer + 1;
        snprintf(name, sizeof name, "hidden.%d", k);
        assert_close(f, name, host, n_rows, n_cols);
    }
    if (id == TENSOR_LOGITS)
        assert_close(f, "all_logits.0", host, n_rows, n_cols);
    free(host);
}

static void every_layer_and_position_is_close_to_the_goldens(void **state) {
    struct fixture *f = *state;
    struct error err;
    int n;
    int32_t *ids = ids_of(json_array_get(f->prompts, 0), "prompt_ids", &n);
    int32_t positions[64], drawn[64];
    struct sampling how[64] = {{0}};
    struct workspace *ws = workspace_new(&f->model, &err);
    for (int i = 0; i < n; i++)
        positions[i] = i;
    struct batch batch = {n,         1,    n,    ids,   positions, (int32_t[]){0, n},
                          positions, NULL, NULL, false, false};
    struct probe probe = {see_hidden, f};
    if (!forward(&f->model, ws, &batch, &probe, &err))
        fail_msg("%s", err.text);
    must(forward_finish(&f->model, ws, &batch, how, drawn, &err), &err);
    workspace_free(ws);
    free(ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_tokenize_to_the_golden_ids),
        cmocka_unit_test(greedy_ids_equal_the_goldens),
        cmocka_unit_test(every_layer_and_position_is_close_to_the_goldens),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
