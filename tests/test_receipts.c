/*
 * test_receipts - receipts of random answers verify on another device than they were made on, in
 * other batches and passes; changed ones are refused, each for its own reason; and texts that are
 * read along have the scores that sampling had. The devices are the CPU and the GPU where the
 * program has its kernels, else the emulation. SAMEBITS_RECEIPTS=N: so many receipts, and as many
 * changed ones; SAMEBITS_TOKENS=N: so many scores; SAMEBITS_SEED=S: others.
 */
#include "model/files/digests.h"
#include "model/files/json.h"
#include "model/numerics.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/logprobs.h"
#include "scheduler/own_caches.h"
#include "scheduler/paged_memory.h"
#include "scheduler/receipt.h"
#include "tests/tiny_models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 16, N_DEVICES = 2 };

/* One model on both devices. */
struct both {
    struct tiny_model on[N_DEVICES];
    json_t *files;
};

static int number_of(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int n_receipts(void) {
    return number_of("SAMEBITS_RECEIPTS", 100);
}

static bool has_gpu(void) {
    return &gpu_ops != NULL;
}

/* Which of them verifies most: the emulation is slow. */
static int fast_device(void) {
    return has_gpu();
}

static int n_changed(void) {
    return n_receipts() < 1000 ? 1000 : n_receipts();
}

static struct random numbers(uint64_t test) {
    return (struct random){test + 1000 * (uint64_t)number_of("SAMEBITS_SEED", 0)};
}

static void must(int result, const struct error *err) {
    if (result)
        fail_msg("%s", err->text);
}

static void write_file(const char *dir, const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void both_open(struct both *b, int which) {
    const char *names[N_DEVICES] = {"cpu", has_gpu() ? "gpu" : "emu"};
    struct error err;
    for (int i = 0; i < N_DEVICES; i++) {
        setenv("SAMEBITS_DEVICE", names[i], 1);
        tiny_model_open(&b->on[i], which);
    }
    unsetenv("SAMEBITS_DEVICE");
    write_file(b->on[0].fixture.dir, "tokenizer.json", "{}");
    b->files = folder_digests(b->on[0].fixture.dir, &err);
    must(!b->files, &err);
}

static void both_close(struct both *b) {
    json_decref(b->files);
    for (int i = 0; i < N_DEVICES; i++)
        tiny_model_close(&b->on[i]);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Requests, answered in some way; what the callback saw is kept. */
struct run {
    struct tiny_model *model;
    struct request requests[MOST];
    struct sequence asked[MOST];
    int n;
    enum kv_type kv_type;
    struct engine engine;
    float *logprobs[MOST];
    int n_seen[MOST];
};

static void ask(struct run *run, struct random *r, int most_new) {
    for (int i = 0; i < run->n; i++) {
        struct sequence *s = &run->asked[i];
        *s = tiny_request(r, run->model, (uint32_t)i, random_int(r, 0, 4) ? 20 : 150, most_new);
        run->requests[i] = (struct request){.prompt = s->tokens,
                                            .n_prompt = s->n_prompt,
                                            .max_new = s->max_new,
                                            .sampling = s->sampling,
                                            .ignore_stop = random_int(r, 0, 1),
                                            .receipt = true};
    }
}

static int on_token(void *context, const struct sequence *s, const float *logits,
                    struct error *err) {
    struct run *run = context;
    int i = (int)((const struct answer *)s - run->engine.answers), n = run->n_seen[i]++;
    (void)err;
    if (!run->logprobs[i])
        run->logprobs[i] = calloc(2048, sizeof(float));
    logprobs_of(logits, run->model->model.config.vocab_size, s->tokens[s->n_tokens - 1],
                &run->logprobs[i][n], NULL, 0);
    return 0;
}

/* Random passes: caches of their own or a pool, any budget and chunk, one pass or many. */
static void answer(struct run *run, struct random *r) {
    struct error err;
    struct generator g = run->model->generator;
    struct kv_pool pool = {0};
    struct paged_memory paged = {0};
    struct own_caches own = {0};
    bool pooled = run->kv_type != KV_BFP16 || random_int(r, 0, 2);
    int max_running = random_int(r, 1, 8);
    struct kv_pool_options pool_options = {
        .block_size = 1 << random_int(r, 0, 8), .bytes = 0, .type = run->kv_type, .poison = true};
    struct paged_options paged_options = {random_int(r, 0, 1) ? PREEMPT_SWAP : PREEMPT_RECOMPUTE,
                                          random_int(r, 0, 1)};
    struct engine_options options = {
        .scheduler = {max_running, max_running + random_int(r, 0, 100), random_int(r, 1, 100),
                      random_int(r, 0, 3) > 0},
        .one_pass = run->kv_type != KV_BFP16 || random_int(r, 0, 1),
    };
    g.fused = pooled && options.one_pass;
    g.on_token = on_token;
    g.on_token_context = run;
    if (pooled) {
        pool_options.n_blocks =
            blocks_for(700, pool_options.block_size) * random_int(r, 1, max_running);
        must(kv_pool_start(&pool, &run->model->model, &pool_options, &err), &err);
        paged_memory_start(&paged, &pool, &paged_options);
        options.memory = &paged.base;
    } else {
        own_caches_start(&own, &run->model->model, kv_dynamic_new, kv_cache_free, 0);
        options.memory = &own.base;
    }
    must(engine_run(&run->engine, &g, run->requests, run->n, &options, &err), &err);
    own_caches_end(&own);
    paged_memory_end(&paged);
    kv_pool_end(&pool);
}

static void run_end(struct run *run) {
    engine_end(&run->engine);
    for (int i = 0; i < run->n; i++) {
        free(run->logprobs[i]);
        sequence_end(&run->asked[i]);
    }
}

static struct receipt_source source_of(const struct both *b, int device, enum kv_type type) {
    return (struct receipt_source){b->files, type, &b->on[device].generator};
}

/* Answers of a random run on a device, as texts: the receipts, for the caller to free. */
static int make_receipts(struct both *b, struct random *r, int device, char *texts[MOST]) {
    struct run run = {.model = &b->on[device], .n = random_int(r, 1, 12)};
    struct error err;
    run.kv_type = random_int(r, 0, 2) ? KV_BFP16 : (enum kv_type)random_int(r, 0, N_KV_TYPES - 1);
    ask(&run, r, device && !has_gpu() ? 4 : 24);
    answer(&run, r);
    struct receipt_source source = source_of(b, device, run.kv_type);
    for (int i = 0; i < run.n; i++) {
        json_t *json = receipt_of(&source, &run.requests[i], &run.engine.answers[i].sequence, &err);
        must(!json, &err);
        texts[i] = json_dumps(json, JSON_COMPACT);
        json_decref(json);
    }
    run_end(&run);
    return run.n;
}

/* ---- verification ---------------------------------------------------------------------------- */

static void verify(const struct both *b, int device, struct random *r, struct receipt *receipts,
                   int n) {
    struct error err;
    int max_running = random_int(r, 1, 16);
    struct generator g = b->on[device].generator;
    struct read_along how = {.generator = &g,
                             .scheduler = {max_running, max_running + random_int(r, 0, 300),
                                           random_int(r, 1, 300), true},
                             .share_prefixes = random_int(r, 0, 1)};
    must(receipts_verify(receipts, n, &how, 1 << random_int(r, 0, 8), &err), &err);
}

static void read_text(struct receipt *out, const struct receipt_source *source, const char *text) {
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    receipt_read(out, source, json);
    json_decref(json);
}

static void receipts_verify_on_another_device(void **state) {
    struct random r = numbers(20);
    struct both *b = *state;
    for (int n = 0, made = 0; n < n_receipts(); made++) {
        struct both *model = &b[made % N_TINY_MODELS];
        int on = made % 4 == 1 || (has_gpu() && made % 4 == 3), other = made % 4 < 2 ? !on : on;
        char *texts[MOST];
        struct receipt receipts[MOST];
        struct receipt_source source = source_of(model, other, KV_BFP16);
        int n_texts = make_receipts(model, &r, on, texts);
        for (int i = 0; i < n_texts; i++)
            read_text(&receipts[i], &source, texts[i]);
        verify(model, other, &r, receipts, n_texts);
        for (int i = 0; i < n_texts; i++) {
            if (receipts[i].reason != RECEIPT_VERIFIED)
                fail_msg("%s: %s\n%s", receipt_reason_name(receipts[i].reason),
                         receipts[i].why.text, texts[i]);
            receipt_free(&receipts[i]);
            free(texts[i]);
        }
        n += n_texts;
    }
}

/* ---- changes --------------------------------------------------------------------------------- */

/* What a change must be called. */
struct verdict {
    enum receipt_reason reason, or ; /* or: also right, when the change makes no sense by itself */
    int token;
};

/* One hexadecimal digit, of those from `first` on, has one bit changed. */
static json_t *other_digit(struct random *r, const json_t *hex, int *at) {
    static const char digits[] = "0123456789abcdef";
    char *text = strdup(json_string_value(hex));
    *at = random_int(r, 0, (int)strlen(text) - 1);
    text[*at] = digits[(strchr(digits, text[*at]) - digits) ^ 1 << random_int(r, 0, 3)];
    json_t *changed = json_string(text);
    free(text);
    return changed;
}

static json_t *other_bit(struct random *r, const json_t *number, int n_bits) {
    return json_integer(json_integer_value(number) ^ (json_int_t)1 << random_int(r, 0, n_bits - 1));
}

static json_t *other_float(struct random *r, const json_t *text) {
    char again[32];
    float x = strtof(json_string_value(text), NULL);
    x = num_float(num_bits(x) ^ 1u << random_int(r, 0, 22));
    snprintf(again, sizeof again, "%.9g", (double)x);
    return json_string(again);
}

static json_t *other_text(struct random *r, const json_t *text, const char *const *among, int n) {
    int i = random_int(r, 0, n - 1);
    return json_string(among[strcmp(among[i], json_string_value(text)) ? i : (i + 1) % n]);
}

static struct verdict change_request(struct random *r, json_t *request) {
    static const char *const names[] = {
        "numerics", "files", "kv_type", "context", "prompt",      "temperature", "top_p",
        "seed",     "top_k", "sample",  "max_new", "ignore_stop", "stop"};
    static const char *const types[] = {"bfp16", "bfp8", "e4m3", "e5m2", "fp16", "bf16"};
    static const char *const files[] = {"config.json", "tokenizer.json", "model.safetensors"};
    static const enum receipt_reason of_file[] = {RECEIPT_CONFIG, RECEIPT_TOKENIZER,
                                                  RECEIPT_WEIGHTS};
    const char *name = names[random_int(r, 0, 12)];
    json_t *old = json_object_get(request, name), *new = NULL;
    struct verdict want = {RECEIPT_OPTIONS, RECEIPT_MALFORMED, -1};
    int at, i = random_int(r, 0, 2);
    if (!strcmp(name, "numerics")) {
        new = other_bit(r, old, 30);
        want.reason = want.or = RECEIPT_NUMERICS;
    } else if (!strcmp(name, "files")) {
        json_object_set_new(old, files[i], other_digit(r, json_object_get(old, files[i]), &at));
        want.reason = want.or = of_file[i];
        return want;
    } else if (!strcmp(name, "prompt")) {
        size_t j = (size_t)random_int(r, 0, (int)json_array_size(old) - 1);
        json_array_set_new(old, j, other_bit(r, json_array_get(old, j), 8));
        return want;
    } else if (!strcmp(name, "stop")) {
        new = json_pack("[s]", "x");
    } else if (json_is_boolean(old)) {
        new = json_boolean(!json_is_true(old));
    } else if (json_is_integer(old)) {
        new = other_bit(r, old, 20);
    } else if (!strcmp(name, "kv_type")) {
        new = other_text(r, old, types, 6);
    } else if (!strcmp(name, "seed")) {
        char seed[24];
        snprintf(seed, sizeof seed, "%llu",
                 strtoull(json_string_value(old), NULL, 10) ^ 1ull << random_int(r, 0, 63));
        new = json_string(seed);
    } else {
        new = other_float(r, old);
    }
    json_object_set_new(request, name, new);
    return want;
}

/* Changes one bit, digit or word of a receipt. */
static struct verdict change(struct random *r, json_t *receipt) {
    static const char *const ends[] = {"stop", "length", "context", "stop string", "cancelled"};
    json_t *output = json_object_get(receipt, "output");
    int n = (int)json_array_size(output), at, i = random_int(r, 0, n - 1);
    switch (random_int(r, 0, 9)) {
    case 0:
        json_object_set_new(receipt, "request_sha256",
                            other_digit(r, json_object_get(receipt, "request_sha256"), &at));
        return (struct verdict){RECEIPT_OPTIONS, RECEIPT_OPTIONS, -1};
    case 1:
        json_object_set_new(receipt, "logits_sha256",
                            other_digit(r, json_object_get(receipt, "logits_sha256"), &at));
        return (struct verdict){RECEIPT_LOGITS, RECEIPT_LOGITS, n - 1};
    case 2:
        json_object_set_new(receipt, "marks",
                            other_digit(r, json_object_get(receipt, "marks"), &at));
        return (struct verdict){RECEIPT_LOGITS, RECEIPT_LOGITS, at / (2 * LINK_MARK_BYTES)};
    case 3:
        json_object_set_new(receipt, "finish",
                            other_text(r, json_object_get(receipt, "finish"), ends, 5));
        return (struct verdict){RECEIPT_END, RECEIPT_END, n};
    case 4:
    case 5:
        json_array_set_new(output, (size_t)i, other_bit(r, json_array_get(output, (size_t)i), 5));
        if (json_integer_value(json_array_get(output, (size_t)i)) >= 61)
            return (struct verdict){RECEIPT_MALFORMED, RECEIPT_MALFORMED, -1};
        return (struct verdict){RECEIPT_TOKEN, RECEIPT_TOKEN, i};
    default:
        return change_request(r, json_object_get(receipt, "request"));
    }
}

static void changed_receipts_are_refused(void **state) {
    struct random r = numbers(21);
    struct both *b = *state;
    int seen[N_RECEIPT_REASONS] = {0};
    for (int n = 0, made = 0; n < n_changed(); made++) {
        struct both *model = &b[made % N_TINY_MODELS];
        char *texts[MOST];
        int n_texts = make_receipts(model, &r, 0, texts);
        struct receipt receipts[8 * MOST];
        struct verdict want[8 * MOST];
        struct receipt_source source = source_of(model, fast_device(), KV_BFP16);
        for (int i = 0; i < 8 * n_texts; i++) {
            json_t *json = json_loads(texts[i % n_texts], 0, NULL);
            want[i] = change(&r, json);
            receipt_read(&receipts[i], &source, json);
            json_decref(json);
        }
        verify(model, fast_device(), &r, receipts, 8 * n_texts);
        for (int i = 0; i < 8 * n_texts; i++) {
            const struct receipt *got = &receipts[i];
            if ((got->reason != want[i].reason && got->reason != want[i].or) ||
                (got->reason == want[i].reason && got->token != want[i].token))
                fail_msg("%s at token %d (%s), and expected %s at token %d:\n%s",
                         receipt_reason_name(got->reason), got->token, got->why.text,
                         receipt_reason_name(want[i].reason), want[i].token, texts[i % n_texts]);
            seen[got->reason]++;
            receipt_free(&receipts[i]);
        }
        for (int i = 0; i < n_texts; i++)
            free(texts[i]);
        n += 8 * n_texts;
    }
    for (int i = RECEIPT_MALFORMED; i < N_RECEIPT_REASONS; i++)
        assert_true(seen[i] > 0);
}

/* Any bit of the text. */
static void no_bit_can_be_changed(void **state) {
    struct random r = numbers(22);
    struct both *b = *state;
    for (int n = 0, made = 0; n < n_changed(); made++) {
        struct both *model = &b[made % N_TINY_MODELS];
        char *texts[MOST];
        int n_texts = make_receipts(model, &r, 0, texts), n_read = 0;
        struct receipt receipts[8 * MOST];
        struct receipt_source source = source_of(model, fast_device(), KV_BFP16);
        for (int i = 0; i < 8 * n_texts; i++) {
            char *text = strdup(texts[i % n_texts]);
            struct error err;
            size_t length = strlen(text);
            text[random_bits64(&r) % length] ^= (char)(1 << random_int(&r, 0, 7));
            json_t *json = json_parse(text, length, "receipt", &err);
            if (json)
                receipt_read(&receipts[n_read++], &source, json);
            json_decref(json);
            free(text);
        }
        verify(model, fast_device(), &r, receipts, n_read);
        for (int i = 0; i < n_read; i++) {
            assert_int_not_equal(receipts[i].reason, RECEIPT_VERIFIED);
            receipt_free(&receipts[i]);
        }
        for (int i = 0; i < n_texts; i++)
            free(texts[i]);
        n += 8 * n_texts;
    }
}

/* One bit of the file of weights: another digest; and whoever lies about that has other logits. */
static void no_weight_can_be_changed(void **state) {
    struct random r = numbers(23);
    struct both *b = *state;
    const char *dir = b->on[0].fixture.dir;
    char path[128], *texts[MOST];
    struct error err;
    int n_texts = make_receipts(b, &r, 0, texts);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    for (int i = 0; i < 40; i++) {
        long at = random_int(&r, (int)size / 2, (int)size - 1);
        struct receipt receipt;
        for (int twice = 0; twice < 2; twice++) {
            fseek(f, at, SEEK_SET);
            int byte = fgetc(f);
            fseek(f, at, SEEK_SET);
            fputc(byte ^ 1 << i % 8, f);
            fflush(f);
            if (twice)
                break;
            json_t *files = folder_digests(dir, &err);
            must(!files, &err);
            struct receipt_source source = {files, KV_BFP16, &b->on[0].generator};
            read_text(&receipt, &source, texts[i % n_texts]);
            assert_int_equal(receipt.reason, RECEIPT_WEIGHTS);
            receipt_free(&receipt);
            json_decref(files);
        }
    }
    fclose(f);
    json_t *files = folder_digests(dir, &err);
    assert_true(json_equal(files, b->files));
    json_decref(files);
    for (int i = 0; i < n_texts; i++)
        free(texts[i]);
}

static void a_liar_has_other_logits(void **state) {
    struct random r = numbers(24);
    struct both *b = *state;
    struct tiny_model *liar = &b->on[0];
    char *texts[MOST];
    struct receipt receipts[MOST];
    struct receipt_source source = source_of(b, 1, KV_BFP16);
    float *gain = liar->model.layers[1].ffn_norm, old = gain[3];
    gain[3] = num_float(num_bits(old) ^ 0x00400000u); /* the device is the CPU */
    int n_texts = make_receipts(b, &r, 0, texts);
    gain[3] = old;
    for (int i = 0; i < n_texts; i++)
        read_text(&receipts[i], &source, texts[i]);
    verify(b, 1, &r, receipts, n_texts);
    for (int i = 0; i < n_texts; i++) {
        assert_int_equal(receipts[i].reason, RECEIPT_LOGITS);
        assert_int_equal(receipts[i].token, 0);
        receipt_free(&receipts[i]);
        free(texts[i]);
    }
}

/* ---- the form ---------------------------------------------------------------------------------
 */

/* By hand: two rows of logits, and a request as the text that its hash is of. */
static void hashes_are_as_documented(void **state) {
    static const char request[] =
        "{\"context\":700,\"files\":{\"config.json\":\"00\"},\"ignore_stop\":false,"
        "\"kv_type\":\"bfp16\",\"max_new\":2,\"numerics\":1,\"prompt\":[5,6],\"sample\":4,"
        "\"seed\":\"18446744073709551615\",\"stop\":[\"a\\n\xc3\xa9\"],\"temperature\":\"0."
        "699999988\","
        "\"top_k\":3,\"top_p\":\"0.899999976\"}";
    struct both *b = *state;
    struct device *cpu = b->on[0].dev;
    unsigned char text[2 * SHA256_BYTES];
    char hex[SHA256_HEX];
    float rows[2][2] = {{1, -2}, {0.5f, 3}};
    struct error err;
    struct sequence s;
    struct sampling_options sampling = {0.7f, 3, 0.9f, UINT64_MAX, true, 4};
    must(sequence_start(&s, 9, &sampling, &err) ||
             sequence_add_prompt(&s, (const int32_t[]){5, 6}, 2, 2, &err) ||
             !(s.chain = logits_chain_new(&err)),
         &err);
    unsigned char *last = s.chain->last;
    for (int i = 0; i < 2; i++) {
        memcpy(text, last, SHA256_BYTES);
        cpu->ops->hash_rows(cpu, text + SHA256_BYTES, rows[i], 1, 2);
        must(sha256_of(hex, text, sizeof text, &err) || sequence_append(&s, 7 + i, &err) ||
                 logits_chain_add(s.chain, text + SHA256_BYTES, &err),
             &err);
    }
    s.finish = FINISH_LENGTH;
    json_t *files = json_pack("{ss}", "config.json", "00");
    struct receipt_source source = {files, KV_BFP16, &b->on[0].generator};
    struct request r = {.stops = (char *[]){"a\n\xc3\xa9"}, .n_stops = 1};
    json_t *json = receipt_of(&source, &r, &s, &err);
    must(!json, &err);
    assert_string_equal(json_string_value(json_object_get(json, "logits_sha256")), hex);
    assert_memory_equal(json_string_value(json_object_get(json, "marks")) + 8, hex, 8);
    must(sha256_of(hex, request, strlen(request), &err), &err);
    assert_string_equal(json_string_value(json_object_get(json, "request_sha256")), hex);
    json_decref(json);
    must(sequence_append(&s, 9, &err), &err); /* whose hash never came */
    assert_null(receipt_of(&source, &r, &s, &err));
    assert_string_equal(err.text, "no receipt: 3 tokens have 2 hashes");
    json_decref(files);
    sequence_end(&s);
    must(sha256_of(hex, "abc", 3, &err), &err); /* FIPS 180-2's example */
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Sampled in one way, and read along in another: the same floats. */
static void scores_are_what_sampling_has(void **state) {
    struct random r = numbers(25);
    struct both *b = *state;
    long n_tokens = 0, wanted = number_of("SAMEBITS_TOKENS", 1000);
    for (int made = 0; n_tokens < wanted; made++) {
        struct both *model = &b[made % N_TINY_MODELS];
        int on = has_gpu() && made % 4 < 2, other = has_gpu() ? made % 2 : made % 40 == 1;
        struct run drawn = {.model = &model->on[on], .n = random_int(&r, 1, 12)};
        struct run read = {.model = &model->on[other], .n = drawn.n};
        struct error err;
        ask(&drawn, &r, other && !has_gpu() ? 6 : 40);
        answer(&drawn, &r);
        for (int i = 0; i < read.n; i++) {
            const struct sequence *s = &drawn.engine.answers[i].sequence;
            read.requests[i] = (struct request){.prompt = s->tokens,
                                                .n_prompt = s->n_prompt,
                                                .max_new = sequence_new_tokens(s),
                                                .sampling = {.top_p = 1},
                                                .ignore_stop = true,
                                                .draft = s->tokens + s->n_prompt,
                                                .n_draft = sequence_new_tokens(s),
                                                .forced = true};
        }
        struct generator g = read.model->generator;
        struct kv_pool pool;
        struct kv_pool_options options = {.block_size = 16, .n_blocks = 16 * 44};
        must(kv_pool_start(&pool, &read.model->model, &options, &err), &err);
        g.fused = true;
        g.on_token = on_token;
        g.on_token_context = &read;
        struct read_along how = {
            .generator = &g,
            .pool = &pool,
            .scheduler = {8, random_int(&r, 8, 300), random_int(&r, 1, 200), true}};
        must(read_along(&how, read.requests, read.n, &read.engine, &err), &err);
        for (int i = 0; i < read.n; i++) {
            assert_int_equal(read.n_seen[i], drawn.n_seen[i]);
            assert_memory_equal(read.logprobs[i], drawn.logprobs[i],
                                sizeof(float) * (size_t)read.n_seen[i]);
            n_tokens += read.n_seen[i];
        }
        run_end(&read);
        kv_pool_end(&pool);
        run_end(&drawn);
    }
}

static int open_models(void **state) {
    static struct both models[N_TINY_MODELS];
    for (int i = 0; i < N_TINY_MODELS; i++)
        both_open(&models[i], i);
    *state = models;
    return 0;
}

static int close_models(void **state) {
    struct both *models = *state;
    for (int i = 0; i < N_TINY_MODELS; i++)
        both_close(&models[i]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(receipts_verify_on_another_device),
        cmocka_unit_test(changed_receipts_are_refused),
        cmocka_unit_test(no_bit_can_be_changed),
        cmocka_unit_test(no_weight_can_be_changed),
        cmocka_unit_test(a_liar_has_other_logits),
        cmocka_unit_test(hashes_are_as_documented),
        cmocka_unit_test(scores_are_what_sampling_has),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
