#include "tutorials/common/demo.h"

#include "model/files/digests.h"
#include "model/files/folder.h"
#include "tutorials/common/complete.h"
#include "tutorials/common/output.h"
#include "tutorials/common/terminal.h"
#include "tutorials/common/verify.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char demo_prompt[] = "Describe the history of the Roman Empire in significant detail.";

const char *demo_requests_file(const struct demo *demo) {
    return demo->options.quick ? "data/prompts/short.jsonl" : "data/prompts/mixed.jsonl";
}

void fingerprint_text(char out[17], uint64_t fingerprint) {
    snprintf(out, 17, "%016llx", (unsigned long long)fingerprint);
}

int demo_other_bits(const char *run, uint64_t bits, const char *other, uint64_t other_bits,
                    struct error *err) {
    return error_set(err,
                     "%s: fingerprint %016llx; %s: %016llx. The tables end here, because both "
                     "should have the same bits",
                     run, (unsigned long long)bits, other, (unsigned long long)other_bits);
}

/* --kernel OP=N: the i-th. */
static int choose_kernel(struct device *dev, const struct options *o, int i, struct error *err) {
    const char *choice = o->kernels[i];
    size_t n = strcspn(choice, "=");
    struct error why;
    char op[32], *end;
    for (int j = 0; j < i; j++)
        if (!strncmp(choice, o->kernels[j], n + 1))
            return error_set(err, "--kernel %s: --kernel %s was given, too: give one for an op",
                             choice, o->kernels[j]);
    long version = choice[n] ? strtol(choice + n + 1, &end, 10) : 0;
    if (!n || !choice[n] || n >= sizeof op || end == choice + n + 1 || *end || version < 0 ||
        version > 99)
        return error_set(err, "--kernel %s: must be OP=N, as linear=2", choice);
    snprintf(op, sizeof op, "%.*s", (int)n, choice);
    if (dev->ops->set_version(dev, op, (int)version, &why))
        return error_set(err, "--kernel %s: %s", choice, why.text);
    return 0;
}

static const struct ops *choose_device(struct demo *demo, struct error *err) {
    struct error why;
    if (demo->options.device)
        return ops_find(demo->options.device, err);
    const struct ops *ops = ops_default(&why);
    if (*why.text)
        fprintf(stderr, "running on the CPU: %s\n", why.text);
    return ops;
}

/* A model may have no chat template: its answers can be empty then. One that cannot be read is an
 * error where it is needed. */
static int load_template(struct demo *demo, struct error *err) {
    const struct options *o = &demo->options;
    bool has_prompts = !o->random && !o->messages && !o->chat && !o->raw && !o->score &&
                       !o->verify_receipt && o->serve < 0;
    if (chat_template_load(&demo->chat, o->model, &demo->why_no_chat))
        return has_prompts ? error_set(err, "%s. --raw continues prompts without the template",
                                       demo->why_no_chat.text)
                           : 0;
    if (demo->chat)
        return 0;
    error_set(&demo->why_no_chat,
              "%s: no chat template in tokenizer_config.json or chat_template.jinja", o->model);
    if (has_prompts)
        fprintf(stderr, "%s: prompts are continued as they are, as with --raw\n",
                demo->why_no_chat.text);
    return 0;
}

static int open_model(struct demo *demo, struct error *err) {
    const struct options *o = &demo->options;
    struct device_options device = {.n_threads = o->threads};
    const struct ops *ops = choose_device(demo, err);
    if (!ops || model_folder_check(o->model, err) ||
        tokenizer_load(&demo->tokenizer, o->model, err) || load_template(demo, err))
        return -1;
    demo->dev = ops->open(&device, err);
    if (!demo->dev)
        return -1;
    for (int i = 0; i < o->n_kernels; i++)
        if (choose_kernel(demo->dev, o, i, err))
            return -1;
    json_object_set_new(demo->json, "device", json_string(ops->name));
    struct progress_bar bar = progress_bar_start("loading");
    struct progress progress = progress_of_loading(&bar);
    int result = model_load_part(&demo->model, demo->dev, o->model, demo->parallel, &progress, err);
    progress_bar_end(&bar);
    if (result)
        return -1;
    if (o->context > demo->model.config.max_positions)
        return error_set(err, "--context %d: the model has %d positions", o->context,
                         demo->model.config.max_positions);
    if (tokenizer_vocab_size(demo->tokenizer) > demo->model.config.vocab_size)
        return error_set(err, "%s: tokenizer.json has ids up to %d, config.json says vocab_size %d",
                         o->model, tokenizer_vocab_size(demo->tokenizer) - 1,
                         demo->model.config.vocab_size);
    if (generator_start(&demo->generator, &demo->model, err))
        return -1;
    demo->generator.chunk = o->chunk;
    demo->generator.fused = demo->phase->fused;
    if (o->context)
        demo->generator.context = o->context;
    return 0;
}

int demo_encode_prompt(const struct demo *demo, const char *prompt, int32_t **ids, size_t *n,
                       struct error *err) {
    if (demo->options.raw || !demo->chat)
        return tokenizer_encode(demo->tokenizer, prompt, strlen(prompt), true, ids, n, err);
    json_t *conversation = chat_of_prompt(prompt, strlen(prompt), err);
    int result =
        !conversation || demo_encode_messages(demo, conversation, "the prompt", ids, n, err);
    json_decref(conversation);
    return result ? -1 : 0;
}

int demo_encode_messages(const struct demo *demo, const json_t *conversation, const char *where,
                         int32_t **ids, size_t *n, struct error *err) {
    char *text;
    size_t n_bytes;
    if (!demo->chat)
        return error_set(err, "%s", demo->why_no_chat.text);
    if (chat_render(demo->chat, conversation, where, &text, &n_bytes, err))
        return -1;
    /* A template spells out its own special tokens; plain text gets those of the tokenizer. */
    int result = tokenizer_encode(demo->tokenizer, text, n_bytes, false, ids, n, err);
    free(text);
    return result;
}

/* A signal handler reaches nothing but this. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal) {
    interrupted = signal;
}

bool demo_interrupted(const struct demo *demo) {
    return generator_interrupted(&demo->generator);
}

/* From here on the first Ctrl-C, SIGTERM or SIGHUP ends the run at the end of its step, the second
 * one at once. A chat waits for its user most of the time: there, it ends the waiting, too. Of
 * ranks, the first decides. */
static void catch_interrupts(struct demo *demo) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction before,
        action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    if (demo->options.verify)
        return;
    if (demo->options.chat)
        action.sa_flags = (int)SA_RESETHAND;
    if (demo->parallel && demo->parallel->rank)
        action.sa_handler = SIG_IGN;
    for (int i = 0; i < 3; i++) {
        sigaction(signals[i], &action, &before);
        if (signals[i] == SIGHUP && before.sa_handler == SIG_IGN) /* nohup */
            signal(SIGHUP, SIG_IGN);
    }
    demo->generator.interrupted = &interrupted;
}

static int run_task(struct demo *demo, struct error *err) {
    const struct options *o = &demo->options;
    if (o->verify)
        return verify_prompt(demo, err);
    if (o->prompt)
        return complete_prompt(demo, err);
    if (o->serve >= 0)
        return demo->phase->serve(demo, err);
    if (o->score)
        return demo->phase->score(demo, err);
    if (o->verify_receipt)
        return demo->phase->verify_receipts(demo, err);
    if (o->random)
        return demo->phase->prompts(demo, err);
    if (o->prompts)
        return demo->phase->prompts ? demo->phase->prompts(demo, err) : complete_prompts(demo, err);
    if (o->messages)
        return complete_messages(demo, err);
    if (o->chat)
        return complete_chat(demo, err);
    return demo->phase->tables(demo, err);
}

static int write_json(const struct demo *demo, struct error *err) {
    struct output o;
    const char *path = demo->options.json;
    if (!path)
        return 0;
    if (output_open(&o, path, err))
        return -1;
    errno = 0;
    if (!json_dumpf(demo->json, o.file, JSON_INDENT(2) | JSON_REAL_PRECISION(9)))
        return output_keep(&o, err);
    error_set(err, "%s: cannot write: %s", path, strerror(errno));
    output_discard(&o);
    return -1;
}

int demo_keep_receipt(struct demo *demo, const struct request *request, const struct sequence *s,
                      struct error *err) {
    if (!demo->receipts || !s->chain || s->finish == FINISH_ERROR)
        return 0;
    json_t *receipt = demo->phase->receipt(demo, request, s, err);
    return receipt ? json_array_append_new(demo->receipts, receipt) : -1;
}

/* One line for each. */
static int write_receipts(const struct demo *demo, struct error *err) {
    struct output o;
    const char *path = demo->options.receipt;
    const json_t *receipt;
    size_t i;
    int failed = 0;
    if (!path)
        return 0;
    if (output_open(&o, path, err))
        return -1;
    json_array_foreach(demo->receipts, i, receipt) {
        failed = failed || json_dumpf(receipt, o.file, JSON_COMPACT) || fputc('\n', o.file) == EOF;
    }
    if (!failed)
        return output_keep(&o, err);
    output_discard(&o);
    return error_set(err, "%s: cannot write: %s", path, strerror(errno));
}

/* For whatever writes receipts or checks them: a server and the tables do, too. */
static int hash_files(struct demo *demo, struct error *err) {
    const struct options *o = &demo->options;
    bool others = o->prompt || o->prompts || o->random || o->messages || o->chat || o->score;
    if (!demo->phase->receipt || (others && !o->receipt))
        return 0;
    demo->receipts = o->receipt ? json_array() : NULL;
    demo->files = folder_digests(o->model, err);
    return demo->files ? 0 : -1;
}

/* The fingerprint on stderr, and whether it is the chapter's if the chapter's tables were asked
 * for.
 */
static void show_fingerprint(const struct demo *demo, const char *fingerprint) {
    char expected[17];
    fingerprint_text(expected, demo->phase->fingerprint);
    if (!demo->phase->fingerprint || !demo->options.as_in_chapter)
        fprintf(stderr, "fingerprint %s\n", fingerprint);
    else if (!strcmp(fingerprint, expected))
        fprintf(stderr, "fingerprint %s, as in the chapter\n", fingerprint);
    else
        fprintf(stderr, "fingerprint %s, not as in the chapter: expected %s\n", fingerprint,
                expected);
}

/* Ends the report: the fingerprint on stderr and the file of --json. What was interrupted has none.
 */
static int finish_report(struct demo *demo, struct error *err) {
    char fingerprint[17];
    bool ended = demo_interrupted(demo);
    parallel_least(demo->parallel, 0); /* files are written when all ranks have come this far */
    if (parallel_check(demo->parallel, err))
        return -1;
    fingerprint_text(fingerprint, fingerprint_value(&demo->run));
    json_object_set_new(demo->json, ended ? "interrupted" : "fingerprint",
                        ended ? json_true() : json_string(fingerprint));
    if (write_json(demo, err) || write_receipts(demo, err) || output_flush_stdout(err))
        return -1;
    if (ended)
        fprintf(stderr, "interrupted\n");
    else if (!demo->options.verify_receipt)
        show_fingerprint(demo, fingerprint);
    return 0;
}

void demo_request_failed(struct demo *demo, int request, const struct error *why) {
    if (!demo->n_failed++)
        error_set(&demo->first_failed, "request %d: %s", request, why->text);
}

/* What did not end the run, but was no success. */
static int check_failures(const struct demo *demo, struct error *err) {
    if (*demo->late.text)
        return error_set(err, "%s", demo->late.text);
    if (demo->n_failed && !demo_interrupted(demo))
        return error_set(err, "%d of the requests could not be answered. The first, %s",
                         demo->n_failed, demo->first_failed.text);
    return 0;
}

static int run_model(struct demo *demo, struct error *err) {
    demo->json = json_pack("{si ss}", "phase", demo->phase->number, "model", demo->options.model);
    if (!demo->json)
        return error_set(err, "--model: the name of the folder is not valid UTF-8");
    if (output_check(demo->options.json, err) || output_check(demo->options.trace, err) ||
        output_check(demo->options.html, err) || output_check(demo->options.receipt, err) ||
        open_model(demo, err) || hash_files(demo, err) || fingerprint_start(&demo->run, err))
        return -1;
    catch_interrupts(demo);
    if (demo->phase->begin)
        demo->phase->begin(demo);
    if (demo->phase->speculate && demo->phase->speculate(demo, err))
        return -1;
    if (run_task(demo, err) || finish_report(demo, err))
        return -1;
    return check_failures(demo, err);
}

static int run_tokenizer(struct demo *demo, struct error *err) {
    if (model_folder_check(demo->options.model, err) ||
        tokenizer_load(&demo->tokenizer, demo->options.model, err))
        return -1;
    return tokenize_lines(demo->tokenizer, demo->options.tokenize, err);
}

static void close_all(struct demo *demo) {
    fingerprint_end(&demo->run);
    if (demo->phase->end_speculation)
        demo->phase->end_speculation(demo);
    generator_end(&demo->generator);
    model_free(&demo->model);
    if (demo->parallel && demo->parallel->on_device)
        demo->parallel->on_device->end(demo->parallel, demo->dev);
    if (demo->dev)
        demo->dev->ops->close(demo->dev);
    tokenizer_free(demo->tokenizer);
    chat_template_free(demo->chat);
    json_decref(demo->json);
    json_decref(demo->files);
    json_decref(demo->receipts);
}

/* A file that is opened must not become stdin, stdout or stderr. */
static int check_streams(struct error *err) {
    if (fcntl(STDOUT_FILENO, F_GETFD) < 0)
        return error_set(err, "stdout: cannot write: %s", strerror(errno));
    while (fcntl(STDIN_FILENO, F_GETFD) < 0 || fcntl(STDERR_FILENO, F_GETFD) < 0)
        if (open("/dev/null", O_RDWR) < 0)
            return error_set(err, "/dev/null: %s", strerror(errno));
    signal(SIGXFSZ, SIG_IGN); /* a file that is too large is an error of writing, with its name */
    return 0;
}

static int run(struct demo *demo, int argc, char **argv, struct error *err) {
    const struct phase *phase = demo->phase;
    if (check_streams(err) || (phase->join && phase->join(demo, err)) ||
        options_parse(&demo->options, argc, argv, phase, err))
        return -1;
    if (demo->options.help) {
        options_help(argv[0], phase);
        return output_flush_stdout(err);
    }
    if (phase->agree && phase->agree(demo, argv, err))
        return -1;
    demo->cache = phase->caches ? &phase->caches[demo->options.cache] : NULL;
    return demo->options.tokenize ? run_tokenizer(demo, err) : run_model(demo, err);
}

int demo_main(int argc, char **argv, const struct phase *phase) {
    struct demo demo = {.phase = phase};
    struct error err;
    int result = run(&demo, argc, argv, &err);
    /* While a GPU waits for another, nothing of it can be freed: then all ranks end at once. */
    if (!result || !demo.parallel || !demo.parallel->on_device)
        close_all(&demo);
    fflush(stdout); /* what was written so far comes before the reason why it ends */
    if (demo.parallel)
        demo.parallel->end(demo.parallel, result ? &err : NULL);
    else if (result)
        fprintf(stderr, "demo: %s\n", err.text);
    return result ? 2 : interrupted ? 128 + interrupted : demo.refused ? 1 : 0;
}
