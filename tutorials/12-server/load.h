/*
 * load.h - many clients at the server, as `vllm bench serve` has them: how fast is it beside the
 * engine alone with the same requests?
 */
#ifndef SAMEBITS_LOAD_H
#define SAMEBITS_LOAD_H

#include "tutorials/common/demo.h"

/* For struct phase: --prompts and --random, as in phase 8. With --clients N the requests of
 * --random go through the server, too: each is sent when it arrives, but at most N are on their way
 * at once. Engine and server take turns; a table shows both. Returns 0, or -1 with err set: also
 * when an answer is none, or has other bits than its request alone. */
int load_prompts(struct demo *demo, struct error *err);

#endif
