#include "scheduler/receipt.h"

#include <stdlib.h>
#include <string.h>

/* The receipts of one batch. */
struct verification {
    struct receipt **receipts; /* [n] */
    int n;
    struct engine engine; /* its requests have their numbers */
};

static void deviates(struct receipt *r, enum receipt_reason reason, int token) {
    r->reason = reason;
    r->token = token;
}

/* Token i of an answer was drawn. */
static int compare(struct receipt *r, const struct sequence *s, int i, struct error *err) {
    if (logits_chain_complete(s->chain, err))
        return -1;
    int n = r->request.n_draft;
    size_t mark = (size_t)i * LINK_MARK_BYTES;
    int32_t drawn = s->tokens[s->n_tokens - 1];
    if (memcmp(s->chain->marks + mark, r->marks + mark, LINK_MARK_BYTES) ||
        (i == n - 1 && memcmp(s->chain->last, r->logits_sha256, SHA256_BYTES))) {
        deviates(r, RECEIPT_LOGITS, i);
        error_set(&r->why, "token %d of %d: the logits that it is drawn from have other bits here",
                  i, n);
    } else if (drawn != r->request.draft[i]) {
        deviates(r, RECEIPT_TOKEN, i);
        error_set(&r->why, "token %d of %d: %d is drawn here, and the receipt has %d", i, n, drawn,
                  r->request.draft[i]);
    }
    return 0;
}

static int on_token(void *context, const struct sequence *s, const float *logits,
                    struct error *err) {
    struct verification *v = context;
    struct receipt *r = v->receipts[(const struct answer *)s - v->engine.answers];
    (void)logits;
    return r->reason == RECEIPT_VERIFIED ? compare(r, s, sequence_new_tokens(s) - 1, err) : 0;
}

/* An answer that deviates would go on by itself. */
static void stepped(void *context, struct engine *e) {
    struct verification *v = context;
    for (int i = 0; i < v->n; i++)
        if (v->receipts[i]->reason != RECEIPT_VERIFIED)
            engine_cancel(e, i);
}

/* Whether the answer ends where the receipt says and for its reason: it was drawn up to there and
 * no further, whatever max_new was. */
static void compare_end(struct receipt *r, const struct sequence *s) {
    static const unsigned char no_rows[SHA256_BYTES];
    int n = r->request.n_draft;
    enum finish finish = s->finish;
    if (finish == FINISH_LENGTH && n < r->request.max_new)
        finish = r->request.n_prompt + n >= r->context ? FINISH_CONTEXT : FINISH_NOT_YET;
    bool cut_short = r->finish == FINISH_CANCELLED && finish == FINISH_NOT_YET;
    if (!n && memcmp(no_rows, r->logits_sha256, SHA256_BYTES)) {
        deviates(r, RECEIPT_LOGITS, -1);
        error_set(&r->why, "there is no token, but a hash of logits");
    } else if (sequence_new_tokens(s) != n || (finish != r->finish && !cut_short)) {
        deviates(r, RECEIPT_END, sequence_new_tokens(s));
        error_set(&r->why, "after %d tokens of %d the answer is \"%s\" here, \"%s\" in the receipt",
                  sequence_new_tokens(s), n, finish_name(finish), finish_name(r->finish));
    }
}

/* Blocks for as many of the longest receipts as can run at once. */
static int blocks_of(const struct verification *v, int max_running, int block_size) {
    int longest = 1;
    for (int i = 0; i < v->n; i++) {
        const struct request *r = &v->receipts[i]->request;
        int n = blocks_for(r->n_prompt + r->n_draft, block_size);
        longest = n > longest ? n : longest;
    }
    return longest * (v->n < max_running ? v->n : max_running);
}

static int run(struct verification *v, const struct read_along *how, int block_size,
               enum kv_type type, struct request *requests, struct error *err) {
    struct kv_pool pool;
    struct generator generator = *how->generator;
    struct read_along here = *how;
    struct kv_pool_options options = {.block_size = block_size, .type = type};
    options.n_blocks = blocks_of(v, how->scheduler.max_running, block_size);
    if (kv_pool_start(&pool, generator.model, &options, err))
        return -1;
    generator.context = generator.model->config.max_positions;
    generator.ignore_stop = false;
    generator.ids_only = true; /* the device hashes them */
    generator.fused = true;
    generator.on_token = on_token;
    generator.on_token_context = v;
    generator.drafter = NULL;
    here.generator = &generator;
    here.pool = &pool;
    here.stepped = stepped;
    for (int i = 0; i < v->n; i++) {
        requests[i] = v->receipts[i]->request;
        requests[i].max_new = requests[i].n_draft;
        requests[i].receipt = true;
    }
    int result = read_along(&here, requests, v->n, &v->engine, err);
    for (int i = 0; i < v->n && !result; i++) {
        const struct answer *a = &v->engine.answers[i];
        if (a->sequence.finish == FINISH_ERROR)
            result = error_set(err, "%s", a->error.text);
        else if (v->receipts[i]->reason == RECEIPT_VERIFIED)
            compare_end(v->receipts[i], &a->sequence);
    }
    engine_end(&v->engine);
    kv_pool_end(&pool);
    return result;
}

int receipts_verify(struct receipt *receipts, int n, const struct read_along *how, int block_size,
                    struct error *err) {
    struct verification v = {.receipts = malloc(sizeof *v.receipts * ((size_t)n + 1))};
    struct request *requests = malloc(sizeof *requests * ((size_t)n + 1));
    int result = v.receipts && requests ? 0 : error_set(err, "out of memory for %d receipts", n);
    for (int type = 0; type < N_KV_TYPES && !result; type++) {
        v.n = 0;
        for (int i = 0; i < n; i++)
            if (receipts[i].reason == RECEIPT_VERIFIED && (int)receipts[i].kv_type == type)
                v.receipts[v.n++] = &receipts[i];
        if (v.n)
            result = run(&v, how, block_size, (enum kv_type)type, requests, err);
    }
    free(v.receipts);
    free(requests);
    return result;
}
