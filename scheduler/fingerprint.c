#include "scheduler/fingerprint.h"

#include <xxhash.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "fingerprints are defined over little-endian bytes; this machine is big-endian"
#endif

int fingerprint_start(struct fingerprint *f, struct error *err) {
    *f = (struct fingerprint){.state = XXH3_createState()};
    if (!f->state)
        return error_set(err, "out of memory for a fingerprint");
    XXH3_64bits_reset(f->state);
    return 0;
}

void fingerprint_add_logits(struct fingerprint *f, const float *logits, int vocab_size) {
    XXH3_64bits_update(f->state, logits, sizeof *logits * (size_t)vocab_size);
}

void fingerprint_add_sequence(struct fingerprint *f, uint64_t sequence) {
    XXH3_64bits_update(f->state, &sequence, sizeof sequence);
    f->only = sequence;
    f->parts++;
}

uint64_t fingerprint_value(const struct fingerprint *f) {
    return f->parts == 1 ? f->only : XXH3_64bits_digest(f->state);
}

void fingerprint_end(struct fingerprint *f) {
    XXH3_freeState(f->state);
    *f = (struct fingerprint){0};
}
