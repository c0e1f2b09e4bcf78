/*
 * score.h - phase 13, --score: how likely texts are.
 *
 * A JSONL file has one text a line: an object with "text", or with "prompt" and "continuation", of
 * which only the second is scored; each a string or a list of token ids; and, if wanted, "id",
 * anything, which comes back. A prompt and its continuation are encoded as one text; what is scored
 * begins with the first token that the prompt alone does not have. The first token of a text
 * follows nothing and has no score.
 *
 * For each line there is one on stdout, in the same order:
 *     {"id", "tokens", "logprobs", "top", "is_greedy", "sum", "perplexity"}
 * tokens are the scored ids; logprobs their natural logarithms, null for a first token; top, with
 * --top-logprobs, the likeliest ids in the place of each and their logarithms; is_greedy whether
 * each is the likeliest; sum that of logprobs; perplexity e^(-sum / number of logprobs), null
 * without any. A text that does not fit the context has "error" instead.
 *
 * The logarithms are those of logprobs.h, as they are while sampling: the same floats.
 */
#ifndef SAMEBITS_SCORE_H
#define SAMEBITS_SCORE_H

#include "tutorials/common/demo.h"

/* For struct phase: scores the file of the options. Returns 0, or -1 with err set: a line that is
 * not as above, a device that failed, no memory. */
int score_file(struct demo *demo, struct error *err);

#endif
