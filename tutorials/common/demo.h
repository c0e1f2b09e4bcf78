/*
 * demo.h - what the phases' demos share: command line, loading, completing prompts, tables.
 *
 * A demo is a `struct phase` and one function that makes the phase's tables; its main is one call
 * of demo_main. Everything a user can do with a prompt is the same in every phase.
 */
#ifndef SAMEBITS_DEMO_H
#define SAMEBITS_DEMO_H

#include "model/files/chat.h"
#include "model/files/json.h"
#include "model/model.h"
#include "model/tokenizer/tokenizer.h"
#include "scheduler/generate.h"
#include "scheduler/request.h"
#include "tutorials/common/options.h"
#include "tutorials/common/table.h"

/* A kind of KV cache that a phase offers. */
struct cache_kind {
    const char *name;
    struct kv_cache *(*create)(const struct model *model, int context, struct error *err);
    void (*destroy)(struct kv_cache *cache);
};

struct phase {
    int number;
    const char *title; /* "no cache" */
    const char *about; /* one sentence for --help */
    /* The first is the default; one without a name comes last. NULL: no cache. */
    const struct cache_kind *caches;
    /* What the run of the tables has with the options of the chapter; 0: the chapter has none. */
    uint64_t fingerprint;
    /* Runs the phase's tables (table.h); 0, or -1 with err set. Both end early, with 0, when the
     * demo is interrupted. */
    int (*tables)(struct demo *demo, struct error *err);
    /* Runs options.prompts, the same way; NULL: one prompt after the other. From phase 3 on it is
     * there and runs options.random where that is given. */
    int (*prompts)(struct demo *demo, struct error *err);
    /* Serves until a signal ends it, with options.serve; NULL before phase 12. Same result. */
    int (*serve)(struct demo *demo, struct error *err);
    /* From phase 13 on: score options.score and check options.verify_receipt, with the same result;
     * and the receipt of an answer that was asked for with one, NULL with err set when there is no
     * memory. It needs demo->files. */
    int (*score)(struct demo *demo, struct error *err);
    int (*verify_receipts)(struct demo *demo, struct error *err);
    json_t *(*receipt)(const struct demo *demo, const struct request *request,
                       const struct sequence *s, struct error *err);
    bool fused; /* a step is one pass, with one attention for all (phase 8) */
    /* Called when the model is loaded; may be NULL. */
    void (*begin)(const struct demo *demo);
    /* Before the options are read, and when they are: phase 14 joins its ranks, and compares them.
     * Both return 0, or -1 with err set. NULL in other phases. */
    int (*join)(struct demo *demo, struct error *err);
    int (*agree)(struct demo *demo, char **argv, struct error *err);
    /* Opens who proposes tokens, as options.speculate and draft say; end is called for every demo.
     * NULL before phase 13. Same result. */
    int (*speculate)(struct demo *demo, struct error *err);
    void (*end_speculation)(struct demo *demo);
};

struct demo {
    const struct phase *phase;
    struct options options;
    const struct cache_kind *cache; /* the one that the options choose; NULL: the phase has none */
    struct device *dev;
    struct parallel *parallel; /* the ranks that share the model; NULL: one */
    struct model model;
    struct tokenizer *tokenizer;
    struct chat_template *chat; /* NULL: none, and why */
    struct error why_no_chat;
    struct generator generator;
    struct fingerprint run; /* of all sequences so far */
    uint32_t n_sequences;   /* run so far */
    json_t *json;           /* what --json writes */
    struct table table;
    struct model draft_model; /* of options.draft */
    json_t *files;            /* their SHA-256 (model/files/digests.h), where receipts are wanted */
    json_t *receipts;         /* what --receipt writes */
    bool refused;             /* a receipt was not right: the exit status is 1 */
    int n_failed;             /* requests that could not be answered */
    struct error first_failed; /* the first of them, and why */
    struct error late; /* what went wrong while there was still something to show; or empty */
};

/* The prompt of the tables that write one text. */
extern const char demo_prompt[];

/* The file of the tables that answer many requests; a shorter one with --quick. */
const char *demo_requests_file(const struct demo *demo);

/* Runs the program. Returns its exit status: 0, 2 after one line on stderr, or 128 + the number of
 * a signal (SIGINT, SIGTERM, SIGHUP), which ends the run at the end of its step. Requests that
 * could not be answered make it 2, too, when everything is printed. */
int demo_main(int argc, char **argv, const struct phase *phase);

/* Whether a signal has interrupted the run (Ctrl-C). Tables then show what they have, without the
 * row that was being measured. */
bool demo_interrupted(const struct demo *demo);

/* A fingerprint as it is shown. */
void fingerprint_text(char out[17], uint64_t fingerprint);

/* Sets err to say that two runs of the same requests differ, and returns -1. */
int demo_other_bits(const char *run, uint64_t bits, const char *other, uint64_t other_bits,
                    struct error *err);

/* Counts a request that could not be answered: its number and why. */
void demo_request_failed(struct demo *demo, int request, const struct error *why);

/* The ids of a prompt as a user gives it: as a chat message if the model chats and --raw does not
 * forbid it. *ids is malloc'ed, the caller's to free. Returns 0, or -1 with err set. */
int demo_encode_prompt(const struct demo *demo, const char *prompt, int32_t **ids, size_t *n,
                       struct error *err);

/* The ids of a conversation (model/files/chat.h), as above; the model must have a chat template.
 * where names it in errors. */
int demo_encode_messages(const struct demo *demo, const json_t *conversation, const char *where,
                         int32_t **ids, size_t *n, struct error *err);

/* Keeps the receipt of an answer, if --receipt asks for it. Returns 0, or -1 with err set. */
int demo_keep_receipt(struct demo *demo, const struct request *request, const struct sequence *s,
                      struct error *err);

/* One measurement for a table: answers `prompt` with exactly n_new tokens (stop tokens do not end
 * it), with the cache kind (NULL: none). Returns a row with the keys new, tok_s, ms_tok, last_ms
 * (mean of the last eighth), ttft_ms, cache_mb, peak_mb and fingerprint, or NULL with err set, also
 * when the demo was interrupted. The caller adds the fingerprint to the run's. */
json_t *demo_measure(struct demo *demo, const char *prompt, int n_new,
                     const struct cache_kind *kind, uint64_t *fingerprint, struct error *err);

#endif
