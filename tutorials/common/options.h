/*
 * options.h - the command line that every demo shares.
 */
#ifndef SAMEBITS_OPTIONS_H
#define SAMEBITS_OPTIONS_H

#include "model/attention/kv_type.h"
#include "model/error.h"
#include "scheduler/sequence.h"

#include <stdbool.h>

struct phase;

enum { MAX_KERNELS = 32, MOST_OPTIONS = 96, DEFAULT_BLOCK_SIZE = 16 };

/* Lengths of random requests: those of real conversations, or short ones. */
enum mix { MIX_SHAREGPT, MIX_SHORT };

struct options {
    bool given[MOST_OPTIONS];         /* which options were on the command line; for options.c */
    const char *model;                /* folder */
    const char *device;               /* name of an op table; NULL: the best there is */
    const char *kernels[MAX_KERNELS]; /* [n_kernels] OP=N: versions of kernels; none: the best */
    int n_kernels;
    int threads;        /* 0: as many as OpenBLAS likes */
    int context;        /* 0: the model's */
    int chunk;          /* prompt tokens per pass */
    int cache;          /* index into the phase's caches */
    const char *prompt; /* at most one of these eight; none: the phase's tables */
    const char *prompts;
    int random; /* requests drawn at random; 0: none. From phase 3 on */
    const char *messages;
    bool chat;
    int serve;                  /* port to listen on, 0: any; -1: not asked for. From phase 12 on */
    const char *host;           /* address to listen on */
    const char *api_key;        /* file with the key that clients must have; NULL: they need none */
    int max_waiting;            /* requests in the server's queue */
    float max_wait;             /* seconds that one of them may wait; 0: for ever */
    int clients;                /* that send random requests to the server; 0: it is not used */
    int timeout;                /* seconds that a client may take to ask, or do nothing */
    const char *tokenize;       /* instead of running the model */
    const char *score;          /* file of texts; from phase 13 on */
    bool speculate;             /* drafts from the text itself, phase 13; or */
    const char *draft;          /* a folder: a model's */
    const char *verify_receipt; /* file of receipts, from phase 13 on, like the next */
    const char *receipt;        /* file to write them to */
    int top_logprobs;           /* likeliest tokens that are told beside each */
    bool verify;                /* with prompt: compare the device with the reference */
    bool quick;                 /* the tables: fewer and shorter measurements */
    bool raw;                   /* no chat template */
    bool ids;
    int max_new;
    struct sampling_options sampling;
    const char *dump_logits;
    const char *json;
    int max_running, token_budget; /* from phase 3 on */
    const char *trace, *html;
    enum kv_type kv_type;      /* from phase 11 on */
    int block_size, kv_blocks; /* from phase 5 on; kv_blocks and kv_memory 0: not given */
    size_t kv_memory;          /* bytes */
    int preempt;               /* enum preempt of what gives way in the pool, from phase 7 on */
    bool no_prefix_cache;
    int samples;           /* of each request */
    float rate;            /* of random requests, per second; 0: all at once */
    enum mix mix;          /* their lengths */
    int longest;           /* answer of a random request: --max-new, or 0 when that was not given */
    int ranks;             /* processes to share the model, 0: as started. From phase 14 on */
    float patience;        /* seconds that a rank may keep the others waiting */
    bool context_parallel; /* ranks share positions, not heads */
    bool plan;             /* the tables: what more ranks would take, computed */
    float link, latency, memory_speed; /* for that: GB/s, microseconds, GB/s */
    bool as_in_chapter;                /* the tables, with no option that changes their results */
    bool help;
};

/* Reads argv for a phase. The strings point into argv. Returns 0, or -1 with err naming the
 * option. */
int options_parse(struct options *out, int argc, char **argv, const struct phase *phase,
                  struct error *err);

/* Prints --help to stdout: the options of this phase, and which ones later phases add. */
void options_help(const char *program, const struct phase *phase);

#endif
