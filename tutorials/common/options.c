#include "tutorials/common/options.h"

#include "tutorials/common/demo.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the table: parsing, refusals and --help come from it ------------------------------------ */

/* What a command line asks for. An option says with which of these it does something. EACH are the
 * --prompts of phases 0 and 1, one after the other, PROMPTS those of later ones, all at once. */
enum { TABLES = 1, PROMPT = 2, VERIFY = 4, EACH = 8, PROMPTS = 16, RANDOM = 32, MESSAGES = 64 };
enum { CHAT = 128, TOKENIZE = 256, SERVE = 512, SCORE = 1024 };
enum { CHECK = 2048, N_TASKS = 12 };
enum { ONE = PROMPT | EACH | MESSAGES | CHAT, MANY = PROMPTS | RANDOM, DRAWING = ONE | MANY };
enum { SERVED = MANY | SERVE, RECEIVED = PROMPT | MESSAGES | MANY };
enum { POOLS = SERVED | SCORE, READING = POOLS | CHECK };
enum { RUNNING = DRAWING | VERIFY | READING };

static const char *const task_names[N_TASKS] = {
    "the tables", "--prompt", "--verify",   "--prompts", "--prompts", "--random",
    "--messages", "--chat",   "--tokenize", "--serve",   "--score",   "--verify-receipt"};

/* Sets of phases; DRAWN: their tables draw tokens as the options say; POOLED: their tables have a
 * pool of the size that the options say. */
#define FROM(n) (ALL >> (n) << (n))
#define ONLY(n) (1 << (n))
enum { N_PHASES = 15, ALL = (1 << N_PHASES) - 1, DRAWN = ALL & ~ONLY(9) & ~ONLY(11) };
enum { POOLED = ONLY(5) | ONLY(6) | ONLY(8) | ONLY(10) };

/* Kinds of values. READ and WRITE: a file; INT and FLOAT: row.min to row.max; CHOICE: one of the
 * names of row.choice. */
enum kind { SWITCH, TEXT, READ, WRITE, INT, POWER_OF_TWO, FLOAT, SEED, SIZE, CHOICE, KERNEL };

/* CHANGES: the results of the tables are then others than the chapter's. Two options that are in
 * the same group exclude each other. */
enum { CHANGES = 1, TASK_GROUP = 2, POOL_GROUP = 4, DRAFT_GROUP = 8 };

static const char *cache_name(const struct phase *phase, int i) {
    return phase->caches ? phase->caches[i].name : NULL;
}

static const char *type_name(const struct phase *phase, int i) {
    (void)phase;
    return i < N_KV_TYPES ? kv_type_name((enum kv_type)i) : NULL;
}

static const char *mix_name(const struct phase *phase, int i) {
    (void)phase;
    return i == MIX_SHAREGPT ? "sharegpt" : i == MIX_SHORT ? "short" : NULL;
}

static const char *preempt_name(const struct phase *phase, int i) {
    (void)phase;
    return i == 0 ? "recompute" : i == 1 ? "swap" : NULL;
}

struct row {
    const char *name, *argument, *help; /* no name: a heading */
    size_t field;                       /* in struct options */
    enum kind kind;
    unsigned phases, tasks; /* phases that have the option with these tasks */
    unsigned tables;        /* phases whose tables use it */
    unsigned flags;
    double min, max;
    const char *(*choice)(const struct phase *phase, int i); /* the i-th name; NULL behind them */
};

#define F(field) offsetof(struct options, field)

static const struct row rows[] = {
    {.help = "What to run (nothing of these: this phase's tables)"},
    {"prompt", "TEXT", "complete one prompt; the text streams to stdout", F(prompt), TEXT, ALL,
     PROMPT | VERIFY, 0, .flags = TASK_GROUP},
    {"prompts", "FILE", "one JSON object a line: prompt or messages, max_new, seed, ...",
     F(prompts), READ, ALL, EACH | PROMPTS, 0, .flags = TASK_GROUP},
    {"random", "N", "N requests of random tokens; see --rate and --mix", F(random), INT, FROM(3),
     RANDOM, 0, .flags = TASK_GROUP, .min = 1, .max = 1e5},
    {"messages", "FILE.json", "answer a JSON list of chat messages, or {messages, tools}",
     F(messages), READ, ALL, MESSAGES, 0, .flags = TASK_GROUP},
    {"chat", NULL, "talk; the conversation keeps its cache. Ctrl-D ends", F(chat), SWITCH, ALL,
     CHAT, 0, .flags = TASK_GROUP},
    {"tokenize", "FILE.jsonl", "one JSON string a line -> one JSON array of ids a line",
     F(tokenize), READ, ALL, TOKENIZE, 0, .flags = TASK_GROUP},
    {"serve", "PORT", "answer HTTP requests (OpenAI's API) on this port; 0: any that is free",
     F(serve), INT, FROM(12), SERVE, 0, .flags = TASK_GROUP, .min = 0, .max = 65535},
    {"score", "FILE", "how likely texts are: one {text} or {prompt, continuation} a line", F(score),
     READ, FROM(13), SCORE, 0, .flags = TASK_GROUP},
    {"verify-receipt", "FILE", "check receipts, one a line; exit status 1: one is not right",
     F(verify_receipt), READ, FROM(13), CHECK, 0, .flags = TASK_GROUP},
    {"verify", NULL, "with --prompt: compare a few tokens, every tensor, with the CPU's", F(verify),
     SWITCH, ALL, PROMPT | VERIFY, 0, .flags = 0},
    {"quick", NULL, "the tables with fewer and shorter measurements: some seconds", F(quick),
     SWITCH, 0, 0, ALL, .flags = CHANGES},
    {.help = "How to sample"},
    {"max-new", "N", "most tokens to write (512; with --random: those of the mix)", F(max_new), INT,
     ALL, DRAWING, 0, .min = 1, .max = INT_MAX},
    {"temperature", "T", "0 is greedy (0)", F(sampling.temperature), FLOAT, ALL, DRAWING, DRAWN,
     .flags = CHANGES, .max = 1e30},
    {"top-k", "K", "draw among the K most likely; 0: all (0)", F(sampling.top_k), INT, ALL, DRAWING,
     DRAWN, .flags = CHANGES, .max = INT_MAX},
    {"top-p", "P", "draw among the most likely that hold a probability of P (1)", F(sampling.top_p),
     FLOAT, ALL, DRAWING, DRAWN, .flags = CHANGES, .max = 1},
    {"seed", "S", "of each request: fixes its answer (none: each request of a run draws otherwise)",
     F(sampling.seed), SEED, ALL, DRAWING, DRAWN, .flags = CHANGES},
    {.help = "What to run it on"},
    {"model", "DIR", "Hugging Face folder (data/model)", F(model), TEXT, ALL, RUNNING | TOKENIZE,
     ALL, .flags = CHANGES},
    {"device", "NAME", "cpu, gpu or emu, the kernels on a CPU (gpu if there is one)", F(device),
     TEXT, ALL, RUNNING | TOKENIZE, ALL, .flags = 0},
    {"kernel", "OP=N", "version N of an op's kernel, as linear=2; may be repeated; changes no bit",
     F(kernels), KERNEL, ALL, RUNNING, ALL, .flags = 0},
    {"threads", "N", "for matrix products (all cores); changes no bit", F(threads), INT, ALL,
     RUNNING | TOKENIZE, ALL, .min = 1, .max = 1024},
    {"context", "N", "most tokens of a sequence (the model's)", F(context), INT, ALL, RUNNING,
     FROM(0) & ~ONLY(9), .flags = CHANGES, .min = 2, .max = INT_MAX},
    {"cache", "KIND", "which KV cache:", F(cache), CHOICE, FROM(1), RUNNING, FROM(2),
     .choice = cache_name},
    {"chunk", "N", "prompt tokens read in one pass (128); changes no bit", F(chunk), INT, FROM(1),
     RUNNING, FROM(1) & ~ONLY(9), .min = 1, .max = 1 << 20},
    {"speculate", NULL, "propose tokens that followed the same words before; changes no bit",
     F(speculate), SWITCH, ONLY(13), DRAWING | SERVE, 0, .flags = DRAFT_GROUP},
    {"draft", "DIR", "propose the tokens of a smaller model with this vocabulary; changes no bit",
     F(draft), TEXT, ONLY(13), DRAWING | SERVE, 0, .flags = DRAFT_GROUP},
    {.help = "Many requests"},
    {"max-running", "N", "requests admitted at once (8)", F(max_running), INT, FROM(3), READING,
     FROM(3) & ~ONLY(9) & ~ONLY(10), .min = 1, .max = 1 << 20},
    {"token-budget", "N", "most tokens of all requests in one step (256, or N of --max-running)",
     F(token_budget), INT, FROM(3), READING, FROM(3) & ~ONLY(9), .min = 1, .max = 1 << 30},
    {"trace", "FILE.json", "a trace for ui.perfetto.dev", F(trace), WRITE, FROM(3), MANY, 0,
     .flags = 0},
    {"html", "FILE.html", "the run as a page of its own, to be stepped through in a browser",
     F(html), WRITE, FROM(3), MANY, 0, .flags = 0},
    {"rate", "R", "random requests per second, Poisson; 0: all at once (0)", F(rate), FLOAT,
     FROM(3), RANDOM, 0, .max = 1e6},
    {"mix", "NAME", "lengths of random requests, drawn with --seed:", F(mix), CHOICE, FROM(3),
     RANDOM, 0, .choice = mix_name},
    {.help = "The pool of KV blocks"},
    {"block-size", "N", "positions per block, a power of two up to 256 (16)", F(block_size),
     POWER_OF_TWO, FROM(7), RUNNING, FROM(5) & ~ONLY(9), .min = 1, .max = 256},
    {"kv-blocks", "N", "blocks in the pool of all requests; or", F(kv_blocks), INT, FROM(7), POOLS,
     POOLED, .flags = POOL_GROUP, .min = 1, .max = INT_MAX},
    {"kv-memory", "SIZE", "its memory, as 500M or 2G (80 % of what is free; tables choose)",
     F(kv_memory), SIZE, FROM(7), POOLS, POOLED, .flags = POOL_GROUP},
    {"kv-type", "TYPE", "keys and values as", F(kv_type), CHOICE, FROM(11), RUNNING, 0,
     .choice = type_name},
    {"preempt", "HOW", "who gives way reads its tokens again, or has them in host memory:",
     F(preempt), CHOICE, FROM(7), SERVED, 0, .choice = preempt_name},
    {"no-prefix-cache", NULL, "requests that begin alike share no blocks", F(no_prefix_cache),
     SWITCH, FROM(7), READING, 0, .flags = 0},
    {"samples", "N", "answers to each request of --prompts, which share its prompt (1)", F(samples),
     INT, FROM(7), PROMPTS, 0, .min = 1, .max = 1000},
    {.help = "The server"},
    {"clients", "N", "so many send the requests of --random to it, beside a run without it",
     F(clients), INT, FROM(12), RANDOM, 0, .min = 1, .max = 900},
    {"host", "ADDRESS", "the address to listen on (127.0.0.1)", F(host), TEXT, FROM(12), SERVE, 0,
     .flags = 0},
    {"api-key", "FILE", "clients must have the key in its first line as bearer token", F(api_key),
     READ, FROM(12), SERVE, 0, .flags = 0},
    {"max-waiting", "N", "requests in the queue; one more gets status 429 (1000)", F(max_waiting),
     INT, FROM(12), SERVE, FROM(12), .min = 1, .max = 1 << 20},
    {"max-wait", "SECONDS", "how long one may wait there, then status 503; 0: for ever (600)",
     F(max_wait), FLOAT, FROM(12), SERVE, FROM(12), .max = 1e9},
    {"timeout", "SECONDS", "a client may take so long to send a request, or do nothing (60)",
     F(timeout), INT, FROM(12), SERVE, FROM(12), .min = 1, .max = 1e6},
    {.help = "Ranks: processes that share the model (also: mpirun -n N ./demo ...)"},
    {"ranks", "N", "start N of them on this host", F(ranks), INT, FROM(14), RUNNING & ~VERIFY,
     FROM(14), .min = 1, .max = 1024},
    {"context-parallel", NULL,
     "they share the positions of the caches, in blocks of 256 for each, not the heads",
     F(context_parallel), SWITCH, FROM(14), RUNNING & ~VERIFY, FROM(14), .flags = 0},
    {"patience", "S", "seconds that a rank may keep the others waiting (10; 20 while loading)",
     F(patience), FLOAT, FROM(14), RUNNING & ~VERIFY, FROM(14), .min = 0.1, .max = 1e6},
    {"plan", NULL, "the tables: step times of 1 to 64 ranks, computed from the next three", F(plan),
     SWITCH, 0, 0, FROM(14), .flags = CHANGES},
    {"link", "G", "GB/s that a rank sends (450)", F(link), FLOAT, 0, 0, FROM(14), .min = 1e-3,
     .max = 1e6},
    {"latency", "U", "microseconds from rank to rank (3)", F(latency), FLOAT, 0, 0, FROM(14),
     .min = 0, .max = 1e6},
    {"memory-speed", "G", "GB/s at which a rank reads its weights (4000)", F(memory_speed), FLOAT,
     0, 0, FROM(14), .min = 1e-3, .max = 1e6},
    {.help = "What to print"},
    {"top-logprobs", "N", "with --score: the N likeliest tokens beside each (0)", F(top_logprobs),
     INT, FROM(13), SCORE, 0, .min = 0, .max = 20},
    {"receipt", "FILE", "a receipt of each answer, by which anybody can check it", F(receipt),
     WRITE, FROM(13), RECEIVED, 0, .flags = 0},
    {"raw", NULL, "no chat template: continue the prompt as it is", F(raw), SWITCH, ALL,
     PROMPT | VERIFY | EACH | PROMPTS, ALL, .flags = CHANGES},
    {"ids", NULL, "token ids instead of text, in lines prompt: ... and output: ...", F(ids), SWITCH,
     ALL, ONE, 0, .flags = 0},
    {"dump-logits", "FILE.npy", "float32 [steps, vocab], a row per token drawn", F(dump_logits),
     WRITE, ALL, ONE, 0, .flags = 0},
    {"json", "FILE", "the tables, or the run's metrics, as JSON", F(json), WRITE, ALL, RUNNING, ALL,
     .flags = 0},
    {"help", NULL, "this text", F(help), SWITCH, ALL, RUNNING | TOKENIZE, ALL, .flags = 0},
};

enum { N_ROWS = sizeof rows / sizeof *rows, FIRST_KEY = 256 };
_Static_assert(sizeof rows / sizeof *rows <= MOST_OPTIONS,
               "options.given has an element for each row");

static bool given(const struct options *o, int row) {
    return o->given[row];
}

/* With what a phase takes an option; 0: it does not have it. */
static unsigned tasks_of(const struct row *row, int phase) {
    unsigned tasks = (row->phases >> phase & 1 ? row->tasks : 0) |
                     (row->tables >> phase & 1 ? (unsigned)TABLES : 0);
    return tasks & ~(unsigned)((phase < 2 ? PROMPTS : EACH) | (phase < 12 ? SERVE : 0) |
                               (phase < 13 ? SCORE | CHECK : 0));
}

/* The first phase from `phase` on, or else the last one before it, that takes the option with one
 * of the tasks; N_PHASES: none. */
static int first_phase(const struct row *row, int phase, unsigned tasks) {
    for (int p = phase; p < N_PHASES; p++)
        if (tasks_of(row, p) & tasks)
            return p;
    while (--phase >= 0 && !(tasks_of(row, phase) & tasks))
        ;
    return phase < 0 ? N_PHASES : phase;
}

/* ---- words ----------------------------------------------------------------------------------- */

enum { LIST = 160 };

/* Adds a word to a list "a, b or c". */
static void add_word(char list[LIST], const char *word, bool first, bool last) {
    size_t n = strlen(list);
    snprintf(list + n, LIST - n, "%s%s", first ? "" : last ? " or " : ", ", word);
}

static void list_tasks(char list[LIST], unsigned tasks) {
    if (tasks & PROMPT)
        tasks &= ~(unsigned)VERIFY; /* a prompt, too */
    unsigned left = tasks;
    *list = 0;
    for (int i = 1; i <= N_TASKS; i++) {
        int task = i % N_TASKS; /* the tables come last */
        if (!(tasks >> task & 1))
            continue;
        left &= ~(1u << task);
        add_word(list, task_names[task], !*list, !left);
    }
}

static void list_choices(char list[LIST], const struct row *row, const struct phase *phase) {
    *list = 0;
    for (int i = 0; row->choice(phase, i); i++)
        add_word(list, row->choice(phase, i), !i, !row->choice(phase, i + 1));
}

/* ---- help ------------------------------------------------------------------------------------ */

static void show_row(const struct row *row, const struct phase *phase) {
    char option[64], choices[LIST];
    snprintf(option, sizeof option, "--%s%s%s", row->name, row->argument ? " " : "",
             row->argument ? row->argument : "");
    printf("  %-26s %s", option, row->help);
    if (row->choice) {
        list_choices(choices, row, phase);
        printf(" %s (%s)", choices, row->choice(phase, 0));
    }
    printf("\n");
}

/* What a later phase adds. */
static void show_new_options(int phase) {
    bool any = false;
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].name && first_phase(&rows[i], 0, ~0u) == phase) {
            if (!any)
                printf("Phase %d adds", phase);
            printf("%s --%s", any ? "," : "", rows[i].name);
            any = true;
        }
    if (any)
        printf("\n");
}

void options_help(const char *program, const struct phase *phase) {
    const char *heading = NULL;
    printf("Phase %d, %s. %s\n\nUsage: %s [OPTION]...\n", phase->number, phase->title, phase->about,
           program);
    for (int i = 0; i < N_ROWS; i++) {
        if (!rows[i].name) {
            heading = rows[i].help;
        } else if (tasks_of(&rows[i], phase->number)) {
            if (heading)
                printf("\n%s:\n", heading);
            heading = NULL;
            show_row(&rows[i], phase);
        }
    }
    printf("\n");
    for (int later = phase->number + 1; later < N_PHASES; later++)
        show_new_options(later);
    printf("\nExit status: 0; 2 after an error, which is told on stderr; also 2 when a request of\n"
           "--prompts could not be answered, behind all tables; 128 + N after signal N, as 130\n"
           "after Ctrl-C.\n\nExample: %s --prompt \"What is the capital of France?\"\n",
           program);
}

/* ---- values ---------------------------------------------------------------------------------- */

static int parse_int(const struct row *row, const char *text, int *out, struct error *err) {
    int min = (int)row->min, max = (int)row->max;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < min || value > max)
        return error_set(err, "--%s %s: must be a whole number from %d to %d", row->name, text, min,
                         max);
    if (row->kind == POWER_OF_TWO && value & (value - 1))
        return error_set(err, "--%s %s: must be a power of two from %d to %d", row->name, text, min,
                         max);
    *out = (int)value;
    return 0;
}

static int parse_float(const struct row *row, const char *text, float *out, struct error *err) {
    char *end;
    errno = 0;
    float value = strtof(text, &end);
    if (end == text || *end || !((double)value >= row->min && (double)value <= row->max))
        return error_set(err, "--%s %s: must be a number from %g to %g", row->name, text, row->min,
                         row->max);
    if (errno) /* it would count as 0, which means something else */
        return error_set(err, "--%s %s: too close to 0; give 0, or more than 1e-37", row->name,
                         text);
    *out = value;
    return 0;
}

static int parse_seed(const struct row *row, const char *text, uint64_t *out, struct error *err) {
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    if (end == text || *end || errno || strchr(text, '-'))
        return error_set(err, "--%s %s: must be a whole number from 0 to 2^64-1", row->name, text);
    return 0;
}

/* Bytes, with the usual suffixes: 1K = 1024. */
static int parse_size(const struct row *row, const char *text, size_t *out, struct error *err) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    int shift = !*end ? 0 : *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : -1;
    bool whole = end != text && text[0] >= '0' && text[0] <= '9' && !errno && shift >= 0 &&
                 !(shift && end[1]);
    if (!whole || !value || value > SIZE_MAX >> shift)
        return error_set(err,
                         "--%s %s: must be a number of bytes, 1 or more, or with K, M or G "
                         "behind it as 500M",
                         row->name, text);
    *out = (size_t)value << shift;
    return 0;
}

static int parse_choice(const struct row *row, const char *text, const struct phase *phase,
                        int *out, struct error *err) {
    char choices[LIST];
    for (int i = 0; row->choice(phase, i); i++)
        if (!strcmp(text, row->choice(phase, i))) {
            *out = i;
            return 0;
        }
    list_choices(choices, row, phase);
    return error_set(err, "--%s %s: must be %s", row->name, text, choices);
}

static int set_option(struct options *o, const struct row *row, const char *text,
                      const struct phase *phase, struct error *err) {
    void *field = (char *)o + row->field;
    switch (row->kind) {
    case SWITCH:
        *(bool *)field = true;
        return 0;
    case INT:
    case POWER_OF_TWO:
        return parse_int(row, text, field, err);
    case FLOAT:
        return parse_float(row, text, field, err);
    case SEED:
        o->sampling.has_seed = true;
        return parse_seed(row, text, field, err);
    case SIZE:
        return parse_size(row, text, field, err);
    case CHOICE:
        return phase->number < first_phase(row, 0, ~0u)
                   ? 0
                   : parse_choice(row, text, phase, field, err);
    case KERNEL:
        if (o->n_kernels == MAX_KERNELS)
            return error_set(err, "--kernel %s: at most %d of them", text, MAX_KERNELS);
        o->kernels[o->n_kernels++] = text;
        return 0;
    default:
        *(const char **)field = text;
        return 0;
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static unsigned task_asked(const struct options *o, int phase) {
    return o->tokenize         ? TOKENIZE
           : o->serve >= 0     ? SERVE
           : o->score          ? SCORE
           : o->verify_receipt ? CHECK
           : o->prompt         ? (o->verify ? VERIFY : PROMPT)
           : o->prompts        ? (phase < 2 ? EACH : PROMPTS)
           : o->random         ? RANDOM
           : o->messages       ? MESSAGES
           : o->chat           ? CHAT
                               : TABLES;
}

/* An option that the phase does not have, or that would do nothing. */
static int check_use(const struct row *row, unsigned task, int phase, struct error *err) {
    char here[LIST], asked[LIST], later[LIST] = "";
    unsigned tasks = tasks_of(row, phase);
    int first = first_phase(row, phase, ~0u), next = first_phase(row, phase, task);
    if (tasks & task)
        return 0;
    if (!tasks)
        return error_set(err, "--%s: make phase%d builds a demo that has it", row->name, first);
    list_tasks(here, tasks);
    list_tasks(asked, task);
    if (next < N_PHASES)
        snprintf(later, sizeof later, "; make phase%d builds a demo in which it does", next);
    return error_set(err, "--%s does nothing with %s in this phase: it goes with %s%s", row->name,
                     asked, here, later);
}

static int check_groups(const struct options *o, struct error *err) {
    for (int i = 0; i < N_ROWS; i++)
        for (int j = 0; j < i; j++)
            if (given(o, i) && given(o, j) &&
                rows[i].flags & rows[j].flags & (TASK_GROUP | POOL_GROUP | DRAFT_GROUP))
                return error_set(err, "--%s and --%s exclude each other: give one", rows[j].name,
                                 rows[i].name);
    return 0;
}

/* Whether two paths name one file. Devices (/dev/null) may be named twice. */
static bool is_same_file(const char *a, const char *b) {
    struct stat of_a, of_b;
    if (stat(a, &of_a) || stat(b, &of_b))
        return !strcmp(a, b);
    return S_ISREG(of_a.st_mode) && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

/* What is written must go to different files, and to none that is read. */
static int check_files(const struct options *o, struct error *err) {
    for (int i = 0; i < N_ROWS; i++)
        for (int j = 0; j < i; j++) {
            const struct row *a = &rows[j], *b = &rows[i];
            bool files = (a->kind == READ || a->kind == WRITE) && b->kind == WRITE;
            if (!files || !given(o, i) || !given(o, j))
                continue;
            const char *path_a = *(const char *const *)((const char *)o + a->field),
                       *path_b = *(const char *const *)((const char *)o + b->field);
            if (is_same_file(path_a, path_b))
                return error_set(
                    err, "--%s and --%s: %s %s; give them different files", a->name, b->name,
                    a->kind == READ ? "the second would overwrite what the first reads,"
                                    : "both would write",
                    path_b);
        }
    return 0;
}

static int check(struct options *o, int phase, struct error *err) {
    unsigned task = task_asked(o, phase);
    if (check_groups(o, err))
        return -1;
    o->as_in_chapter = task == TABLES;
    for (int i = 0; i < N_ROWS; i++)
        if (given(o, i)) {
            if (check_use(&rows[i], task, phase, err))
                return -1;
            o->as_in_chapter = o->as_in_chapter && !(rows[i].flags & CHANGES);
        }
    return check_files(o, err);
}

static int set_defaults(struct options *o, struct error *err) {
    o->longest = o->max_new;
    o->max_new = o->max_new ? o->max_new : 512;
    o->max_running = o->max_running ? o->max_running : 8;
    if (o->token_budget && o->token_budget < o->max_running)
        return error_set(err,
                         "--token-budget %d: each of the %d requests of --max-running draws a "
                         "token per step: at least %d",
                         o->token_budget, o->max_running, o->max_running);
    if (!o->token_budget)
        o->token_budget = o->max_running > 256 ? o->max_running : 256;
    return 0;
}

int options_parse(struct options *out, int argc, char **argv, const struct phase *phase,
                  struct error *err) {
    struct option table[N_ROWS + 1] = {{0}};
    int n = 0, key;
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].name)
            table[n++] =
                (struct option){rows[i].name, rows[i].argument != NULL, NULL, FIRST_KEY + i};
    *out = (struct options){.model = "data/model",
                            .chunk = 128,
                            .block_size = DEFAULT_BLOCK_SIZE,
                            .sampling = {.top_p = 1},
                            .serve = -1,
                            .host = "127.0.0.1",
                            .max_waiting = 1000,
                            .max_wait = 600,
                            .timeout = 60,
                            .patience = 10,
                            .link = 450,
                            .latency = 3,
                            .memory_speed = 4000};
    opterr = 0;
    while ((key = getopt_long(argc, argv, ":", table, NULL)) != -1) {
        const char *word = argv[optind - 1];
        if (key == ':')
            return error_set(err, "%s needs a value; see --help", word);
        if (key == '?' && optopt >= FIRST_KEY)
            return error_set(err, "%s: it takes no value; see --help", word);
        if (key == '?' && optopt)
            return error_set(err, "-%c: unknown option; see --help", optopt);
        if (key == '?')
            return error_set(err, "%s: unknown option, or short for several; see --help", word);
        if (set_option(out, &rows[key - FIRST_KEY], optarg, phase, err))
            return -1;
        out->given[key - FIRST_KEY] = true;
    }
    if (optind < argc)
        return error_set(err, "%s: unexpected argument; a prompt is given with --prompt",
                         argv[optind]);
    return out->help ? 0 : check(out, phase->number, err) || set_defaults(out, err) ? -1 : 0;
}
