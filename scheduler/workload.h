/*
 * workload.h - a list of requests: read from a file, or drawn at random.
 */
#ifndef SAMEBITS_WORKLOAD_H
#define SAMEBITS_WORKLOAD_H

#include "model/files/json.h"
#include "scheduler/request.h"

struct workload {
    struct request *requests; /* [n] in order of arrival */
    int n, capacity;
};

/* Turns the "prompt" (a string) of a line into token ids, malloc'ed, or a line with "messages" and
 * maybe "tools" (model/files/chat.h). Returns 0, or -1 with err set; the second says where in it.
 */
struct workload_encoder {
    int (*prompt)(void *context, const char *text, int32_t **ids, size_t *n, struct error *err);
    int (*messages)(void *context, const json_t *line, const char *where, int32_t **ids, size_t *n,
                    struct error *err);
    void *context;
};

/*
 * Reads a JSONL file, one request a line: a string, which is its prompt, or an object with prompt
 * or messages (and tools); and if wanted id (a string that no other line has), max_new, arrival
 * (seconds), temperature, top_k, top_p, seed, and stop: a string or a list of strings. What a line
 * does not say, or says is null, `defaults` says. Requests are sorted by arrival, equal ones stay
 * in the order of the file. They join those that w has already. Returns 0, or -1 with err set:
 * file, line, key and what was expected; a file without requests is refused, too. The workload must
 * be freed in either case.
 */
int workload_read(struct workload *w, const char *path, const struct request *defaults,
                  const struct workload_encoder *encoder, struct error *err);

/* How long prompts and answers are and how often they come. Lengths are lognormal: the median, and
 * sigma, the standard deviation of the logarithm; clipped to 1 ... the most. */
struct workload_mix {
    double requests_per_second; /* Poisson arrivals; 0: all at once */
    double prompt_median, prompt_sigma, answer_median, answer_sigma;
    int most_prompt, most_answer;
};

/* Lengths like those of the ShareGPT conversations that serving benchmarks use: mean input 161 and
 * mean output 338 tokens (Kwon et al., 2023, figure 11), long-tailed. */
extern const struct workload_mix workload_sharegpt;

/* Questions and answers of a few lines: medians of 20 and 24 tokens, at most 128 each. */
extern const struct workload_mix workload_short;

/* Adds n requests with random ids below vocab_size: the same for the same seed on every machine.
 * Returns 0, or -1 with err set: no memory, or a rate so low that one comes after 1e9 seconds.
 * workload_free in either case. */
int workload_random(struct workload *w, int n, const struct workload_mix *mix, int vocab_size,
                    const struct sampling_options *sampling, uint64_t seed, struct error *err);

/* Adds a request that is all zero. Returns it, or NULL with err set (no memory); it is valid until
 * the next one is added. */
struct request *workload_add(struct workload *w, struct error *err);

/* Makes n samples of each request, n >= 1, one behind the other: the second to the last are forks
 * of the first (request.h) and use its prompt and stop strings. Returns 0, or -1 with err set and w
 * as it was (no memory). */
int workload_fork(struct workload *w, int n, struct error *err);

/* A zeroed one is fine. */
void workload_free(struct workload *w);

#endif
