/*
 * --plan: how long a decoding step of known models would take on 1 to 64 ranks, from three speeds.
 * Nothing is measured here; the chapter compares it with what was.
 *
 *     step   = read + talk
 *     read   = bytes of the largest part of the weights / memory speed
 *     talk   = for each call: hops * latency + bytes on the way / link
 *              all-reduce of b bytes over R ranks: 2 ceil(log2 R) hops, 2 (R-1)/R b bytes
 *              gathering of b bytes in all:          ceil(log2 R) hops,   (R-1)/R b bytes
 *              broadcast:                            ceil(log2 R) hops
 *
 * Left out: the caches, which ranks share like the weights; norms and sampling, which all do alike.
 * The bytes of an all-reduce are those of a ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce
 * algorithms", 2009), its hops those of a tree: a library takes the better of the two.
 */
#include "tutorials/14-tensor-parallel/ranks.h"

#include <stdio.h>
#include <string.h>

enum { MOST_RANKS = 64 };

/* Bytes of weights that rank r reads in a step: 2 a number. */
static double bytes_of(const struct model_config *c, const struct model_part *part) {
    double hidden = c->hidden, dim = c->head_dim;
    double layer =
        hidden * dim * (2.0 * part->heads.n + 2.0 * part->kv_heads.n) + 3.0 * hidden * part->ffn.n;
    return 2 * (c->n_layers * layer + hidden * part->vocab.n);
}

/* The most that a rank reads, or 0 where so many cannot share the model. */
static double largest_part(const struct model_config *c, int n_ranks) {
    struct model_part part;
    struct error ignored;
    double most = 0;
    for (int r = 0; r < n_ranks; r++) {
        if (parallel_part(&part, c, r, n_ranks, false, &ignored))
            return 0;
        double bytes = bytes_of(c, &part);
        most = bytes > most ? bytes : most;
    }
    return most;
}

struct talk {
    double hops, bytes; /* of one rank, in a step */
};

static void add(struct talk *t, int n_calls, double hops, double bytes) {
    t->hops += n_calls * hops;
    t->bytes += n_calls * bytes;
}

/* A step of n sequences, as model/forward_parallel.h, parallel_check_pass and the engine talk. */
static struct talk talk_of(const struct model_config *c, int n_ranks, int n) {
    struct talk t = {0, 0};
    int hops = 0;
    double share = (n_ranks - 1.0) / n_ranks, hidden = c->hidden;
    while (1 << hops < n_ranks)
        hops++;
    add(&t, 2 * c->n_layers, 2 * hops, 2 * share * 4 * n);          /* largest numbers of rows */
    add(&t, 2 * c->n_layers, 2 * hops, 2 * share * 8 * hidden * n); /* sums */
    add(&t, 1, 2 * hops, 2 * share * 4 * hidden * n);               /* embeddings */
    add(&t, 1, hops, share * 4 * c->vocab_size * n);                /* logits */
    add(&t, 1, hops, share * 16 * n_ranks);                         /* the end of the pass */
    add(&t, 3, hops, 8);                                            /* times; whether to end */
    return t;
}

static double talk_ms(const struct options *o, const struct talk *t) {
    return t->hops * (double)o->latency * 1e-3 + t->bytes / (double)o->link * 1e-6;
}

static void show_model(struct demo *demo, const char *name, const struct model_config *c) {
    enum { MANY = 64 };
    const struct options *o = &demo->options;
    double alone = largest_part(c, 1) / (double)o->memory_speed * 1e-6;
    for (int n = 1; n <= MOST_RANKS; n *= 2) {
        double bytes = largest_part(c, n), read = bytes / (double)o->memory_speed * 1e-6;
        struct talk one = talk_of(c, n, 1), many = talk_of(c, n, MANY);
        double step = read + talk_ms(o, &one);
        if (bytes > 0)
            demo_table_row(demo, json_pack("[sifffffff]", name, n, bytes * 1e-9, read,
                                           one.bytes * 1e-3, talk_ms(o, &one), step, alone / step,
                                           read + talk_ms(o, &many)));
    }
}

int ranks_plan(struct demo *demo, struct error *err) {
    static const struct column columns[] = {
        {"model", "model", -1, 12},        {"ranks", "ranks", 0, 0},
        {"gb", "GB a rank", 3, 0},         {"read_ms", "reading ms", 3, 0},
        {"kb", "KB a step", 1, 9},         {"talk_ms", "talking ms", 3, 0},
        {"step_ms", "step ms", 3, 8},      {"speedup", "times", 2, 6},
        {"many_ms", "step of 64 ms", 3, 0}};
    static const struct {
        const char *name;
        struct model_config config;
    } known[] = {{"Llama-3-8B",
                  {.n_layers = 32,
                   .hidden = 4096,
                   .n_heads = 32,
                   .n_kv_heads = 8,
                   .head_dim = 128,
                   .ffn = 14336,
                   .vocab_size = 128256}},
                 {"Llama-3-70B",
                  {.n_layers = 80,
                   .hidden = 8192,
                   .n_heads = 64,
                   .n_kv_heads = 8,
                   .head_dim = 128,
                   .ffn = 28672,
                   .vocab_size = 128256}}};
    const struct options *o = &demo->options;
    struct model_config own;
    char title[160];
    if (model_config_load(&own, o->model, err))
        return -1;
    snprintf(title, sizeof title,
             "A step of one sequence: memory %g GB/s, links %g GB/s and %g microseconds",
             (double)o->memory_speed, (double)o->link, (double)o->latency);
    demo_table_begin(demo, "plan", title, columns, 9);
    show_model(demo, "--model", &own);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        show_model(demo, known[i].name, &known[i].config);
    return demo_table_end(demo, 0);
}
