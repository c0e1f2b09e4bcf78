/*
 * tiny_models.h - models with random weights for tests of the scheduler: two layers, small sizes,
 * and what a request gives when it runs alone. And the shipped model, in the same form.
 */
#ifndef SAMEBITS_TESTS_TINY_MODELS_H
#define SAMEBITS_TESTS_TINY_MODELS_H

#include "scheduler/generate.h"
#include "tests/checkpoint_writer.h"
#include "tests/random.h"

struct tiny_model {
    struct load_fixture fixture; /* the checkpoint */
    struct device *dev;          /* the device under test */
    struct tiny_model *whole;    /* of a model that ranks share: all of it; else NULL */
    struct model model;
    struct generator generator;
};

/* MHA, GQA and MQA; head dims 16 to 128; contexts of 700. The last two have sliding windows: in
 * both layers, and in the second alone. */
enum { N_TINY_MODELS = 6 };

/* And three more for ranks: heads that cannot be dealt out evenly, biases, q/k norms, tied weights.
 */
enum { N_SHARED_MODELS = N_TINY_MODELS + 3 };

/* And one with a context of 2400, for ranks that share positions. */
enum { LONG_MODEL = N_SHARED_MODELS };

/* Opens model number `which` on the device under test. Whatever fails, fails the test. */
void tiny_model_open(struct tiny_model *t, int which);

/* The part that a rank has of it. whole: the same model, open; it answers for tiny_alone. */
void tiny_model_share(struct tiny_model *t, int which, struct tiny_model *whole,
                      struct parallel *ranks);
void tiny_model_close(struct tiny_model *t);

/* tiny_model_open for the model in data/model. */
void shipped_model_open(struct tiny_model *t);
void shipped_model_close(struct tiny_model *t);

/* A sequence that was asked for something random: up to max_prompt ids (mostly few) and up to
 * max_new new tokens, greedy or sampled, with a seed or without. id: its number in the run. The
 * caller ends it. */
struct sequence tiny_request(struct random *r, const struct tiny_model *t, uint32_t id,
                             int max_prompt, int max_new);

/* The request's prompt and options answered by generate() alone; with its id only if it has no
 * seed. The caller ends it. */
struct sequence tiny_alone(struct tiny_model *t, const struct sequence *request);

/* Fails unless both have the same ids, end and fingerprint. */
void assert_same_answer(const struct sequence *want, const struct sequence *got);

#endif
