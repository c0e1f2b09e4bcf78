/*
 * complete.h - prompts in, text out: --prompt, --prompts, --messages, --chat and --tokenize.
 */
#ifndef SAMEBITS_COMPLETE_H
#define SAMEBITS_COMPLETE_H

#include "tutorials/common/demo.h"

/* Each does what its option says with demo->options; 0, or -1 with err set. The first three print
 * one line of metrics per answer on stderr. */
int complete_prompt(struct demo *demo, struct error *err);
int complete_prompts(struct demo *demo, struct error *err);
int complete_messages(struct demo *demo, struct error *err);
int complete_chat(struct demo *demo, struct error *err);

/* Needs only the tokenizer. */
int tokenize_lines(const struct tokenizer *tokenizer, const char *path, struct error *err);

#endif
