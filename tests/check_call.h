/*
 * check_call.h - what the two programs of `make check` say to each other.
 *
 * The grader (check_kernel.c) has the reference and the verdict, and no code of a reader. The
 * candidate (check_candidate.c) has the reader's kernel and knows no result. Requests go through a
 * pipe; arrays lie in memory that both have mapped (check_process.h), behind a head (struct
 * check_memory), each between two zones that nobody may write to. What the candidate finds on the
 * device after a call, zones included, it puts where the inputs were.
 *
 *     grader      request       sees READY: clock on, GO       DONE: clock off      compares
 *     candidate           places arrays, READY         calls, DONE        results, ANSWERED
 */
#ifndef SAMEBITS_TESTS_CHECK_CALL_H
#define SAMEBITS_TESTS_CHECK_CALL_H

#include "tests/check_cases.h"
#include "tests/check_process.h"

enum {
    CHECK_BATCH = 6,   /* the most calls in one request */
    CHECK_ZONE = 256,  /* bytes of a zone: arrays stay aligned */
    CHECK_HEAD = 4096, /* bytes before the arrays of the first call */
    CHECK_NO_ARRAY = -1
};

enum check_state { CHECK_ASKED, CHECK_READY, CHECK_GO, CHECK_DONE, CHECK_ANSWERED };

/* The head of the shared memory. */
struct check_memory {
    atomic_int state;
    int is_lost;        /* the device failed: err says how */
    struct fault fault; /* of all calls together */
    struct error err;
};

/* Where one array lies. */
struct check_place {
    enum check_role role;
    int rows, cols;       /* of weights */
    size_t bytes, zone;   /* zone: bytes on each side; 0: the memory ends where the array ends */
    size_t at, exponents; /* in the memory of a call: the first zone; the exponents of weights */
};

struct check_request {
    int size[CHECK_SIZES];
    int over;     /* array 0 is this array, too; or CHECK_NO_ARRAY */
    int n_calls;  /* 0 ... CHECK_BATCH, one after the other, with arrays of their own */
    int n_copies; /* instead of calls: copies of CHECK_COPY_BYTES on the device */
    int is_timed; /* the device works until it is READY: its clocks are up, its cache is cold */
    int n_arrays;
    struct check_place places[CHECK_ARRAYS];
    size_t call_bytes; /* from the arrays of one call to those of the next */
};

#define CHECK_COPY_BYTES ((size_t)1 << 30)

#endif
