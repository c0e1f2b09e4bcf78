/* The typical mistakes of lab 2: what each looks like from outside, and three hints. */
#include "tests/labs/02/causes.h"

#include <string.h>

static bool in(const struct lab_finding *f, const char *check) {
    return !strcmp(f->check->name, check);
}

static bool label_has(const struct lab_finding *f, const char *text) {
    return f->how == LAB_WRONG && strstr(f->label, text);
}

static bool not_refused(const struct lab_finding *f) {
    return in(f, "refused");
}

static bool piece_boundary(const struct lab_finding *f) {
    return in(f, "read") && (f->size > 7 || label_has(f, "waste.steps"));
}

static bool first_token(const struct lab_finding *f) {
    return in(f, "read");
}

static bool padding_counted(const struct lab_finding *f) {
    return label_has(f, "waste.padding_rows") || label_has(f, "waste.prompt_rows");
}

static bool rows_missing(const struct lab_finding *f) {
    return f->check->step == 2 && label_has(f, "rows of pass");
}

static bool shifted(const struct lab_finding *f) {
    return in(f, "padded") || (in(f, "pieces") && lab_failed(f, "padded"));
}

static bool cut_padding(const struct lab_finding *f) {
    return in(f, "pieces");
}

static bool cancelled(const struct lab_finding *f) {
    return in(f, "interrupted");
}

static bool idle(const struct lab_finding *f) {
    return in(f, "ends");
}

static bool decode(const struct lab_finding *f) {
    return in(f, "decode");
}

const struct lab_cause lab_2_causes[N_LAB_2_CAUSES] = {
    {"an empty prompt goes through",
     not_refused,
     {"What is the first token drawn from when the prompt is empty?",
      "Every prompt is checked before anything is read; one that is refused ends the batch with "
      "-1.",
      "Look for generator_check_prompt in {naive_batch_generate} or {count_columns}: it is called "
      "for all, and its result looked at."}},
    {"padding is counted wrongly",
     padding_counted,
     {"How many rows has the rectangle, and how many of them nobody needs?",
      "prompt_rows is n times the longest length; padding_rows the sum of what each prompt lacks.",
      "Look at the sum over sequences in {count_padding} or {naive_batch_generate}: columns - "
      "n_tokens."}},
    {"off by one at a piece",
     piece_boundary,
     {"Nine columns in pieces of eight: what does the second pass read?",
      "A pass reads first ... end-1, and end is not in it. Only the pass that ends with the last "
      "column draws.",
      "Look at first, end and draw of the part in {prompt_part}."}},
    {"the first token",
     first_token,
     {"Which pass reads the last token of the prompt, and what follows?",
      "The pass that reads the last column draws a token for each sequence: `draw`.",
      "Look at {prompt_part}: sequence, cache, first, end, padding 0, draw."}},
    {"the rectangle has a dent",
     rows_missing,
     {"How many rows has every sequence in every pass?",
      "All have the same: padding + end - first is the number of columns of the piece.",
      "Look at `padding` in {padded_part} or {prompt_part}: a piece that is all padding has as "
      "many rows of it as it has columns."}},
    {"the positions are shifted",
     shifted,
     {"At which position is the first token of a padded prompt?",
      "Position is column - padding: the prompt's first token has position 0 wherever it stands.",
      "Look at first and end in {padded_part} or {prompt_part}: the padding is taken off both."}},
    {"a piece cuts through the padding",
     cut_padding,
     {"A piece of columns 4 ... 7 and a prompt that begins at column 6: how many rows of padding?",
      "Padding of a piece is what lies before `padding` in this piece alone, between 0 and its "
      "columns. Positions are never negative; of a prompt that has begun, the padding is 0.",
      "Look at the three cases in {padded_part} or {prompt_part}: padding <= first, padding < end, "
      "and beyond."}},
    {"who is not done is not cancelled",
     cancelled,
     {"Somebody interrupts the run. Why did each sequence end?",
      "One that has its own end keeps it; the others get FINISH_CANCELLED.",
      "Look at the end of {naive_batch_generate} or {cancel_rest}, and whether the loop looks at "
      "generator_interrupted."}},
    {"a done sequence goes on",
     idle,
     {"What does a sequence do while it waits for the longest?",
      "It has one row of padding: first == end == n_cached, padding 1, draw false, and its row is "
      "idle. The batch goes on until all are done.",
      "Look at what depends on finish in {step_parts} or {step}, and at {all_done}."}},
    {"a step of all",
     decode,
     {"Which token does a step read, and how many rows has it?",
      "A step reads the tokens from n_cached to n_tokens - 1: the one drawn last. It is one row of "
      "each, counted in answer_rows, and a step in steps.",
      "Look at {step_parts} or {step}: first, end, draw, and what it adds to waste."}},
};
