#include "tutorials/common/options.h"

#include "model/attention/kv_view.h"
#include "tutorials/common/demo.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* One row per option serves the parser and --help. */
struct row {
    const char *name, *argument, *help;
    int key;
};

enum {
    MODEL = 256,
    DEVICE,
    KERNEL,
    THREADS,
    CONTEXT,
    CHUNK,
    CACHE,
    PROMPT,
    PROMPTS,
    RANDOM,
    MESSAGES,
    CHAT,
    VERIFY,
    RAW,
    MAX_NEW,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SEED,
    IDS,
    DUMP_LOGITS,
    TOKENIZE,
    JSON,
    MAX_RUNNING,
    TOKEN_BUDGET,
    TRACE,
    RATE,
    MIX,
    BLOCK_SIZE,
    KV_BLOCKS,
    KV_MEMORY,
    KV_TYPE,
    PREEMPT,
    NO_PREFIX_CACHE,
    SAMPLES,
    HELP
};

static const struct row rows[] = {
    {NULL, NULL, "What to run (nothing of these: this phase's tables)", 0},
    {"prompt", "TEXT", "complete one prompt; the text streams to stdout", PROMPT},
    {"prompts", "FILE", "one JSON object a line: prompt or messages, max_new, seed, ...", PROMPTS},
    {"random", "N", "N requests of random tokens, from phase 3 on; see --rate and --mix", RANDOM},
    {"messages", "FILE.json", "answer a JSON list of chat messages", MESSAGES},
    {"chat", NULL, "talk; the conversation keeps its cache. Ctrl-D ends", CHAT},
    {"verify", NULL, "with --prompt: compare a few tokens, every tensor, with the CPU's", VERIFY},
    {"tokenize", "FILE.jsonl", "one JSON string a line -> one JSON array of ids a line", TOKENIZE},
    {NULL, NULL, "How to sample", 0},
    {"max-new", "N", "most tokens to write (512; with --random: those of the mix)", MAX_NEW},
    {"temperature", "T", "0 is greedy (0)", TEMPERATURE},
    {"top-k", "K", "draw among the K most likely; 0: all (0)", TOP_K},
    {"top-p", "P", "draw among the most likely that hold a share P (1)", TOP_P},
    {"seed", "S", "of each request: fixes its answer (none: each request of a run draws otherwise)",
     SEED},
    {NULL, NULL, "What to run it on", 0},
    {"model", "DIR", "Hugging Face folder (data/model)", MODEL},
    {"device", "NAME", "cpu, gpu or emu, the kernels on a CPU (gpu if there is one)", DEVICE},
    {"kernel", "OP=N", "version N of an op's kernel, as linear=2; may be repeated; changes no bit",
     KERNEL},
    {"threads", "N", "for matrix products (all cores); changes no bit", THREADS},
    {"context", "N", "most tokens of a sequence (the model's)", CONTEXT},
    {"cache", "KIND", NULL, CACHE}, /* show_cache_help */
    {"chunk", "N", "prompt tokens read in one pass (128); changes no bit", CHUNK},
    {NULL, NULL, "Many requests, of --prompts, --random or the tables (from phase 3 on)", 0},
    {"max-running", "N", "requests admitted at once (8)", MAX_RUNNING},
    {"token-budget", "N", "most tokens of all requests in one step (256, or N of --max-running)",
     TOKEN_BUDGET},
    {"trace", "FILE.json", "with --prompts or --random: a trace for ui.perfetto.dev", TRACE},
    {"rate", "R", "random requests per second, Poisson; 0: all at once (0)", RATE},
    {"mix", "NAME", "their lengths: sharegpt or short (sharegpt); drawn with --seed", MIX},
    {NULL, NULL,
     "The pool of KV blocks (from phase 5 on for the tables, from phase 7 on for requests)", 0},
    {"block-size", "N", "positions per block, a power of two up to 256 (16)", BLOCK_SIZE},
    {"kv-blocks", "N", "blocks in the pool of all requests; or", KV_BLOCKS},
    {"kv-memory", "SIZE", "its memory, as 500M or 2G (80 % of what is free; tables choose)",
     KV_MEMORY},
    {"kv-type", "TYPE", "bfp16, bfp8, e4m3, e5m2, fp16 or bf16, from phase 11 on (bfp16)", KV_TYPE},
    {NULL, NULL, "Sharing the pool, with --prompts or --random (from phase 7 on)", 0},
    {"preempt", "HOW", "who gives way reads its tokens again or not: recompute or swap (recompute)",
     PREEMPT},
    {"no-prefix-cache", NULL, "requests that begin alike share no blocks", NO_PREFIX_CACHE},
    {"samples", "N", "answers to each request of --prompts, which share its prompt (1)", SAMPLES},
    {NULL, NULL, "What to print", 0},
    {"raw", NULL, "no chat template: continue the prompt as it is", RAW},
    {"ids", NULL, "token ids instead of text, in lines prompt: ... and output: ...", IDS},
    {"dump-logits", "FILE.npy", "float32 [steps, vocab], a row per token drawn", DUMP_LOGITS},
    {"json", "FILE", "the tables, or the run's metrics, as JSON", JSON},
    {"help", NULL, "this text", HELP},
};

enum { N_ROWS = sizeof rows / sizeof *rows };
_Static_assert(HELP - MODEL < 64, "options.given has a bit for each option");

static bool given(const struct options *o, int key) {
    return o->given >> (key - MODEL) & 1;
}

/* The name of the first of these options that was given, or NULL. The keys end with a 0. */
static const char *first_given(const struct options *o, const int *keys) {
    for (; *keys; keys++)
        for (int i = 0; i < N_ROWS; i++)
            if (rows[i].key == *keys && given(o, *keys))
                return rows[i].name;
    return NULL;
}

/* "dynamic or static": the caches of a phase. */
static void cache_names(char out[64], const struct phase *phase) {
    int used = 0;
    out[0] = 0;
    for (int i = 0; i < phase->n_caches; i++)
        used +=
            snprintf(out + used, 64 - (size_t)used, "%s%s", i ? " or " : "", phase->caches[i].name);
}

static void show_cache_help(const char *option, const struct phase *phase) {
    char names[64];
    cache_names(names, phase);
    if (phase->n_caches)
        printf("  %-26s %s (%s)\n", option, names, phase->caches[0].name);
    else
        printf("  %-26s which KV cache, from phase 1 on\n", option);
}

void options_help(const char *program, const struct phase *phase) {
    printf("Phase %d, %s. %s\n\nUsage: %s [OPTION]...\n", phase->number, phase->title, phase->about,
           program);
    for (int i = 0; i < N_ROWS; i++) {
        char option[64];
        if (!rows[i].name) {
            printf("\n%s:\n", rows[i].help);
            continue;
        }
        snprintf(option, sizeof option, "--%s%s%s", rows[i].name, rows[i].argument ? " " : "",
                 rows[i].argument ? rows[i].argument : "");
        if (rows[i].key == CACHE)
            show_cache_help(option, phase);
        else
            printf("  %-26s %s\n", option, rows[i].help);
    }
    printf("\nExit status: 0; 2 after an error, which is told on stderr; also 2 when a request of\n"
           "--prompts could not be answered, behind all tables; 130 after Ctrl-C.\n");
    printf("\nExample: %s --prompt \"What is the capital of France?\"\n", program);
}

static int parse_int(const char *name, const char *text, int min, int max, int *out,
                     struct error *err) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < min || value > max)
        return error_set(err, "--%s %s: must be a whole number from %d to %d", name, text, min,
                         max);
    *out = (int)value;
    return 0;
}

static int parse_float(const char *name, const char *text, float min, float max, float *out,
                       struct error *err) {
    char *end;
    errno = 0;
    float value = strtof(text, &end);
    if (end == text || *end || !(value >= min && value <= max))
        return error_set(err, "--%s %s: must be a number from %g to %g", name, text, (double)min,
                         (double)max);
    if (errno) /* it would count as 0, which means something else */
        return error_set(err, "--%s %s: too close to 0; give 0, or more than 1e-37", name, text);
    *out = value;
    return 0;
}

static int parse_seed(const char *text, uint64_t *out, struct error *err) {
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    if (end == text || *end || errno || strchr(text, '-'))
        return error_set(err, "--seed %s: must be a whole number from 0 to 2^64-1", text);
    return 0;
}

static int parse_block_size(const char *text, int *out, struct error *err) {
    if (parse_int("block-size", text, 1, 256, out, err))
        return -1;
    if (*out & (*out - 1))
        return error_set(err, "--block-size %s: must be a power of two from 1 to 256", text);
    return 0;
}

static int parse_kv_type(const char *text, enum kv_type *out, struct error *err) {
    for (int type = 0; type < N_KV_TYPES; type++)
        if (!strcmp(text, kv_type_name((enum kv_type)type))) {
            *out = (enum kv_type)type;
            return 0;
        }
    return error_set(err, "--kv-type %s: must be bfp16, bfp8, e4m3, e5m2, fp16 or bf16", text);
}

/* Bytes, with the usual suffixes: 1K = 1024. */
static int parse_size(const char *name, const char *text, size_t *out, struct error *err) {
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
                         name, text);
    *out = (size_t)value << shift;
    return 0;
}

static int parse_preempt(const char *text, bool *swap, struct error *err) {
    *swap = !strcmp(text, "swap");
    return *swap || !strcmp(text, "recompute")
               ? 0
               : error_set(err, "--preempt %s: must be recompute or swap", text);
}

static int parse_mix(const char *text, const char **out, struct error *err) {
    *out = text;
    return !strcmp(text, "sharegpt") || !strcmp(text, "short")
               ? 0
               : error_set(err, "--mix %s: must be sharegpt or short", text);
}

static int parse_cache(const char *text, const struct phase *phase, int *out, struct error *err) {
    char names[64];
    for (int i = 0; i < phase->n_caches; i++)
        if (!strcmp(text, phase->caches[i].name)) {
            *out = i;
            return 0;
        }
    if (!phase->n_caches)
        return error_set(
            err, "--cache %s: this phase has no cache; make phase1 builds one that has", text);
    cache_names(names, phase);
    return error_set(err, "--cache %s: in this phase it must be %s", text, names);
}

static int set_option(struct options *o, int key, const char *text, const struct phase *phase,
                      struct error *err) {
    switch (key) {
    case MODEL:
        o->model = text;
        return 0;
    case DEVICE:
        o->device = text;
        return 0;
    case KERNEL:
        if (o->n_kernels == MAX_KERNELS)
            return error_set(err, "--kernel %s: at most %d of them", text, MAX_KERNELS);
        o->kernels[o->n_kernels++] = text;
        return 0;
    case THREADS:
        return parse_int("threads", text, 1, 1024, &o->threads, err);
    case CONTEXT:
        return parse_int("context", text, 2, INT_MAX, &o->context, err);
    case CHUNK:
        return parse_int("chunk", text, 1, 1 << 20, &o->chunk, err);
    case CACHE:
        return parse_cache(text, phase, &o->cache, err);
    case PROMPT:
        o->prompt = text;
        return 0;
    case PROMPTS:
        o->prompts = text;
        return 0;
    case RANDOM:
        return parse_int("random", text, 1, 100000, &o->random, err);
    case MESSAGES:
        o->messages = text;
        return 0;
    case CHAT:
        o->chat = true;
        return 0;
    case VERIFY:
        o->verify = true;
        return 0;
    case RAW:
        o->raw = true;
        return 0;
    case MAX_NEW:
        if (parse_int("max-new", text, 1, INT_MAX, &o->max_new, err))
            return -1;
        o->longest = o->max_new;
        return 0;
    case TEMPERATURE:
        return parse_float("temperature", text, 0, 1e30f, &o->sampling.temperature, err);
    case TOP_K:
        return parse_int("top-k", text, 0, INT_MAX, &o->sampling.top_k, err);
    case TOP_P:
        return parse_float("top-p", text, 0, 1, &o->sampling.top_p, err);
    case SEED:
        o->sampling.has_seed = true;
        return parse_seed(text, &o->sampling.seed, err);
    case IDS:
        o->ids = true;
        return 0;
    case DUMP_LOGITS:
        o->dump_logits = text;
        return 0;
    case TOKENIZE:
        o->tokenize = text;
        return 0;
    case JSON:
        o->json = text;
        return 0;
    case MAX_RUNNING:
        return parse_int("max-running", text, 1, 1 << 20, &o->max_running, err);
    case TOKEN_BUDGET:
        return parse_int("token-budget", text, 1, 1 << 30, &o->token_budget, err);
    case TRACE:
        o->trace = text;
        return 0;
    case BLOCK_SIZE:
        return parse_block_size(text, &o->block_size, err);
    case KV_BLOCKS:
        return parse_int("kv-blocks", text, 1, INT_MAX, &o->kv_blocks, err);
    case KV_MEMORY:
        return parse_size("kv-memory", text, &o->kv_memory, err);
    case KV_TYPE:
        return parse_kv_type(text, &o->kv_type, err);
    case PREEMPT:
        return parse_preempt(text, &o->swap, err);
    case NO_PREFIX_CACHE:
        o->no_prefix_cache = true;
        return 0;
    case SAMPLES:
        return parse_int("samples", text, 1, 1000, &o->samples, err);
    case RATE:
        return parse_float("rate", text, 0, 1e6f, &o->rate, err);
    case MIX:
        return parse_mix(text, &o->mix, err);
    default:
        o->help = true;
        return 0;
    }
}

/* What only some phases have. */
static int check_phase(const struct options *o, const struct phase *phase, struct error *err) {
    static const int scheduler[] = {MAX_RUNNING, TOKEN_BUDGET, TRACE, RANDOM, 0},
                     pool[] = {BLOCK_SIZE, KV_BLOCKS, KV_MEMORY, 0},
                     shared[] = {PREEMPT, NO_PREFIX_CACHE, SAMPLES, 0}, types[] = {KV_TYPE, 0};
    static const struct {
        int number;
        const int *options;
        const char *what;
    } needs[] = {{3, scheduler, "that has a scheduler"},
                 {5, pool, "that has a pool of blocks"},
                 {7, shared, "whose requests share a pool"},
                 {11, types, "whose cache has other types"}};
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        const char *name = first_given(o, needs[i].options);
        if (name && phase->number < needs[i].number)
            return error_set(err, "--%s: make phase%d builds a demo %s", name, needs[i].number,
                             needs[i].what);
    }
    return 0;
}

/* Whether there is at most one sequence at a time, and no table. */
static bool is_alone(const struct options *o) {
    return o->prompt || o->messages || o->chat || o->tokenize;
}

/* What the tables of a phase do not ask. */
static int check_tables(const struct options *o, const struct phase *phase, struct error *err) {
    const char *name = first_given(o, (int[]){TEMPERATURE, TOP_K, TOP_P, SEED, 0});
    if (name && phase->draws_nothing)
        return error_set(err, "--%s: the tables of this phase draw no tokens; give a --prompt",
                         name);
    if (given(o, MAX_NEW))
        return error_set(err, "--max-new: the tables write as many tokens as their requests say; "
                              "give a --prompt");
    return 0;
}

/* What would do nothing: there is no text to print, no other request. */
static int check_use(const struct options *o, const struct phase *phase, struct error *err) {
    bool many = o->prompts || o->random;
    const char *name = first_given(o, (int[]){IDS, DUMP_LOGITS, 0});
    if (name && many && phase->prompts)
        return error_set(err, "--%s: many requests at once have tables only; give one --prompt",
                         name);
    if (name && !o->prompt && !o->messages && !o->chat && !o->prompts)
        return error_set(err, "--%s needs --prompt, --messages or --chat%s", name,
                         phase->prompts ? "" : ", or --prompts");
    if ((name = first_given(o, (int[]){RATE, MIX, 0})) && !o->random)
        return error_set(err, "--%s needs --random", name);
    if (o->samples && !o->prompts)
        return error_set(err, "--samples needs --prompts");
    name = first_given(o, (int[]){TRACE, PREEMPT, NO_PREFIX_CACHE, 0});
    if (name && !many)
        return error_set(err, "--%s needs --prompts or --random", name);
    return many || is_alone(o) || o->help ? 0 : check_tables(o, phase, err);
}

/* The same for what only requests beside each other share. */
static int check_sharing(const struct options *o, const struct phase *phase, struct error *err) {
    bool alone = is_alone(o), any = alone || o->prompts || o->random;
    const char *name = first_given(o, (int[]){BLOCK_SIZE, KV_BLOCKS, KV_MEMORY, 0});
    if (name && any && phase->number < 7)
        return error_set(err,
                         "--%s: in this phase only the tables have a pool. make phase7 builds a "
                         "demo whose requests share one",
                         name);
    name = first_given(o, (int[]){MAX_RUNNING, TOKEN_BUDGET, KV_BLOCKS, KV_MEMORY, 0});
    if (name && alone)
        return error_set(err,
                         "--%s: a sequence that runs alone needs none; it is for --prompts, "
                         "--random and the tables",
                         name);
    return 0;
}

static int check_verify(const struct options *o, struct error *err) {
    if (!o->prompt)
        return error_set(err, "--verify needs --prompt");
    if (o->device && !strcmp(o->device, "cpu"))
        return error_set(err,
                         "--verify compares a device with the CPU: choose --device gpu or emu");
    const char *name =
        first_given(o, (int[]){MAX_NEW, TEMPERATURE, TOP_K, TOP_P, SEED, IDS, DUMP_LOGITS, 0});
    if (name)
        return error_set(err,
                         "--verify draws a few greedy tokens and prints what it compared: leave "
                         "out --%s",
                         name);
    return 0;
}

/* Do two paths name one file, perhaps in different words? Devices (/dev/null) may be named twice.
 */
static bool is_same_file(const char *a, const char *b) {
    struct stat of_a, of_b;
    if (stat(a, &of_a) || stat(b, &of_b))
        return !strcmp(a, b);
    return S_ISREG(of_a.st_mode) && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

/* What is written must go to different files, and to none that is read. */
static int check_files(const struct options *o, struct error *err) {
    const struct {
        const char *name, *path;
    } files[] = {{"prompts", o->prompts},
                 {"messages", o->messages},
                 {"json", o->json},
                 {"trace", o->trace},
                 {"dump-logits", o->dump_logits}};
    enum { READ = 2, ALL = 5 };
    for (int i = READ; i < ALL; i++)
        for (int j = 0; j < i; j++)
            if (files[i].path && files[j].path && is_same_file(files[i].path, files[j].path))
                return error_set(err, "--%s and --%s: %s %s; give them different files",
                                 files[j].name, files[i].name,
                                 j < READ ? "the second would overwrite what the first reads,"
                                          : "both would write",
                                 files[i].path);
    return 0;
}

/* What changes no bit does no harm; all else would have to do something. */
static int check_tokenize(const struct options *o, struct error *err) {
    static const int fine[] = {TOKENIZE, MODEL, DEVICE, KERNEL, THREADS, CHUNK, HELP};
    uint64_t rest = o->given;
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++)
        rest &= ~((uint64_t)1 << (fine[i] - MODEL));
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].name && rest >> (rows[i].key - MODEL) & 1)
            return error_set(err, "--tokenize runs no model: it has nothing for --%s",
                             rows[i].name);
    return 0;
}

static int check_combination(const struct options *o, struct error *err) {
    int tasks = !!o->prompt + !!o->prompts + !!o->random + !!o->messages + o->chat + !!o->tokenize;
    if (tasks > 1)
        return error_set(err, "--prompt, --prompts, --random, --messages, --chat and --tokenize "
                              "exclude each other: give one");
    if (o->raw && (o->chat || o->messages))
        return error_set(err, "--raw: chat messages need the chat template");
    if (o->tokenize && check_tokenize(o, err))
        return -1;
    if (o->kv_blocks && o->kv_memory)
        return error_set(err, "--kv-blocks and --kv-memory both say how large the pool is: give "
                              "one");
    return check_files(o, err) || (o->verify && check_verify(o, err)) ? -1 : 0;
}

int options_parse(struct options *out, int argc, char **argv, const struct phase *phase,
                  struct error *err) {
    struct option table[N_ROWS + 1] = {{0}};
    int n = 0;
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].name)
            table[n++] = (struct option){rows[i].name, rows[i].argument != NULL, NULL, rows[i].key};
    *out = (struct options){
        .model = "data/model", .chunk = 128, .max_new = 512, .sampling = {.top_p = 1}};
    opterr = 0;
    int key;
    while ((key = getopt_long(argc, argv, ":", table, NULL)) != -1) {
        if (key == ':')
            return error_set(err, "%s needs a value; see --help", argv[optind - 1]);
        if (key == '?' && optopt >= MODEL)
            return error_set(err, "%s: it takes no value; see --help", argv[optind - 1]);
        if (key == '?' && optopt)
            return error_set(err, "-%c: unknown option; see --help", optopt);
        if (key == '?')
            return error_set(err, "%s: unknown option, or short for several; see --help",
                             argv[optind - 1]);
        if (set_option(out, key, optarg, phase, err))
            return -1;
        out->given |= (uint64_t)1 << (key - MODEL);
    }
    if (optind < argc)
        return error_set(err, "%s: unexpected argument; a prompt is given with --prompt",
                         argv[optind]);
    if (check_combination(out, err) || check_phase(out, phase, err) || check_use(out, phase, err) ||
        check_sharing(out, phase, err))
        return -1;
    out->max_running = out->max_running ? out->max_running : 8;
    if (out->token_budget && out->token_budget < out->max_running)
        return error_set(err,
                         "--token-budget %d: each of the %d requests of --max-running draws a "
                         "token per step: at least %d",
                         out->token_budget, out->max_running, out->max_running);
    if (!out->token_budget)
        out->token_budget = out->max_running > 256 ? out->max_running : 256;
    out->block_size = out->block_size ? out->block_size : 16;
    return 0;
}
