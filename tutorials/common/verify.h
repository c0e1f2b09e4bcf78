/*
 * verify.h - --verify: the chosen device and the reference side by side, tensor by tensor.
 */
#ifndef SAMEBITS_VERIFY_H
#define SAMEBITS_VERIFY_H

#include "tutorials/common/demo.h"

/*
 * Answers the prompt with a few tokens on the demo's device, keeping every tensor of every pass,
 * and once more on the reference, comparing them and the tokens drawn, bit by bit. Both take the
 * demo's way: its cache, its context, its chunks, one attention for all (phase 8) or not. Prints
 * how many tensors were compared. Returns 0 when all are equal, or -1 with err set to the first
 * that differs: tensor, layer, token, index, both values and both bit patterns.
 */
int verify_prompt(struct demo *demo, struct error *err);

#endif
