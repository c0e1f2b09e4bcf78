#include "tutorials/13-receipts/verify.h"

#include "tutorials/common/output.h"

#include <stdio.h>
#include <stdlib.h>

enum { AT_ONCE = 256 }; /* receipts that are read as one batch */

static struct receipt_source source_of(const struct demo *demo) {
    return (struct receipt_source){demo->files, demo->options.kv_type, &demo->generator};
}

json_t *receipt_of_answer(const struct demo *demo, const struct request *request,
                          const struct sequence *s, struct error *err) {
    struct receipt_source source = source_of(demo);
    return receipt_of(&source, request, s, err);
}

struct checking {
    struct demo *demo;
    struct receipt receipts[AT_ONCE];
    int n;                     /* of them that were read */
    int n_checked, n_verified; /* before them */
    json_t *rows;              /* for --json */
};

static void show(struct checking *c, const struct receipt *r, int number) {
    const char *reason = receipt_reason_name(r->reason);
    if (r->reason == RECEIPT_VERIFIED)
        printf("receipt %d: verified, %d prompt tokens, %d tokens (%s)\n", number,
               r->request.n_prompt, r->request.n_draft, finish_name(r->finish));
    else
        printf("receipt %d: refused, %s: %s\n", number, reason, r->why.text);
    json_array_append_new(c->rows, json_pack("{si ss si ss}", "receipt", number, "result", reason,
                                             "token", r->token, "why", r->why.text));
    c->n_verified += r->reason == RECEIPT_VERIFIED;
}

static int check(struct checking *c, struct error *err) {
    const struct options *o = &c->demo->options;
    struct read_along how = {
        .generator = &c->demo->generator,
        .scheduler = {o->max_running, o->token_budget, o->chunk, true},
        .share_prefixes = !o->no_prefix_cache,
        .tokenizer = c->demo->tokenizer,
    };
    int result = receipts_verify(c->receipts, c->n, &how, o->block_size, err);
    for (int i = 0; i < c->n; i++) {
        if (!result && !demo_interrupted(c->demo))
            show(c, &c->receipts[i], c->n_checked++);
        receipt_free(&c->receipts[i]);
    }
    c->n = 0;
    return result ? -1 : output_flush_stdout(err);
}

static int each_line(void *context, const struct json_source *line) {
    struct checking *c = context;
    struct receipt_source source = source_of(c->demo);
    receipt_read(&c->receipts[c->n++], &source, line->object);
    return c->n == AT_ONCE && !demo_interrupted(c->demo) ? check(c, line->err) : 0;
}

int verify_receipts(struct demo *demo, struct error *err) {
    struct checking *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, "out of memory");
    c->demo = demo;
    c->rows = json_array();
    double began = clock_now();
    int result =
        json_for_each_line(demo->options.verify_receipt, each_line, c, err) || check(c, err);
    if (!result)
        fprintf(stderr, "%d of %d receipts verified in %.2f s\n", c->n_verified, c->n_checked,
                clock_now() - began);
    demo->refused = c->n_verified < c->n_checked;
    json_object_set_new(demo->json, "receipts", c->rows);
    for (int i = 0; i < c->n; i++)
        receipt_free(&c->receipts[i]);
    free(c);
    return result ? -1 : 0;
}
