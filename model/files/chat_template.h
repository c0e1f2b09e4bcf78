/*
 * chat_template.h - the chat template of a checkpoint: a program in Jinja's language that turns
 * messages into the text that the model was trained on.
 *
 * An interpreter of the part of Jinja 3.1 that published checkpoints use: if, for (with loop, a
 * condition, else, break and continue), set and set blocks, macro, generation; all operators but
 * `**`; slices, conditional expressions, namespace, dict, range, raise_exception, strftime_now; the
 * filters, tests and methods in the tables of template_filters.c, template_tests.c and
 * template_strings.c. Environment and variables are those of transformers (5.23): trim_blocks,
 * lstrip_blocks, its own tojson. What is not in the subset is refused with its line. Known
 * differences: the filter safe gives a plain string, which no later "+" escapes; the condition of a
 * loop is asked for all items before the first turn; an error in what a filter like map would give
 * is one even if nobody reads it; a variable from outside stays visible above the line where the
 * template sets that name.
 *
 * A template reaches nothing but the variables it is given and the date, and it has limits for
 * steps, memory, depth and output.
 *
 * Rules for the caller: a template never changes after it is parsed, so any number of threads may
 * render with one.
 */
#ifndef SAMEBITS_MODEL_FILES_CHAT_TEMPLATE_H
#define SAMEBITS_MODEL_FILES_CHAT_TEMPLATE_H

#include "model/error.h"
#include "model/files/json.h"

#include <time.h>

struct chat_template;

/* What a rendering may use at most, and the time that strftime_now tells. */
struct chat_template_limits {
    size_t steps;  /* an expression or statement is one, and every 64 bytes that it works on */
    size_t memory; /* bytes */
    size_t output; /* bytes */
    time_t now;    /* 0: the clock's */
};

/*
 * Reads the template of a Hugging Face folder: DIR/chat_template.jinja, or else "chat_template" in
 * DIR/tokenizer_config.json (of a list of templates, the one that is called "default", or else the
 * first). The special tokens that tokenizer_config.json names (bos_token, eos_token, ...) become
 * its variables. On success *out is the caller's, for chat_template_free; NULL when the folder has
 * no template. Returns 0, or -1 with err set and *out NULL.
 */
int chat_template_load(struct chat_template **out, const char *dir, struct error *err);

/* Parses n bytes of a template. variables: an object (NULL: none) that every rendering sees; where
 * names the template in errors. Both are copied. *out and the result as for chat_template_load. */
int chat_template_parse(struct chat_template **out, const char *text, size_t n,
                        const json_t *variables, const char *where, struct error *err);

/* Replaces the limits, which are large enough for any conversation that a tokenizer takes. */
void chat_template_set_limits(struct chat_template *t, const struct chat_template_limits *limits);

/* Whether a loop of the template runs over the content of a message, so that a list of parts may be
 * passed as it is. */
bool chat_template_reads_parts(const struct chat_template *t);

/*
 * Renders with these variables (an object; they hide the template's own of the same name). On
 * success *out is malloc'ed, the caller's to free, with a NUL behind its *n_bytes bytes. Returns 0,
 * or -1 with err set (what the template raises, an error in it with its line, a limit) and *out
 * NULL.
 */
int chat_template_render(const struct chat_template *t, const json_t *variables, char **out,
                         size_t *n_bytes, struct error *err);

/* NULL is fine. */
void chat_template_free(struct chat_template *t);

#endif
