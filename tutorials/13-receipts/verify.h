/*
 * verify.h - phase 13: receipts on the command line: --receipt writes them, --verify-receipt checks
 * them.
 */
#ifndef SAMEBITS_VERIFY_RECEIPTS_H
#define SAMEBITS_VERIFY_RECEIPTS_H

#include "scheduler/receipt.h"
#include "tutorials/common/demo.h"

/* For struct phase: the receipt of an answer, or NULL with err set. */
json_t *receipt_of_answer(const struct demo *demo, const struct request *request,
                          const struct sequence *s, struct error *err);

/* For struct phase: checks the receipts of a file, one a line, and says for each on stdout what was
 * found; the first of several lines that deviates is demo->refused, too. Returns 0, or -1 with err
 * set: a file that is not JSON, a device that failed. */
int verify_receipts(struct demo *demo, struct error *err);

#endif
