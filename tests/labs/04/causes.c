/* The typical mistakes of lab 4: what each looks like from outside, and three hints. */
#include "tests/labs/04/causes.h"

#include <string.h>

static bool is_check(const struct lab_finding *f, const char *check) {
    return !strcmp(f->check->name, check);
}

static bool says(const struct lab_finding *f, const char *check, const char *what) {
    return f->how == LAB_WRONG && is_check(f, check) && strstr(f->label, what);
}

/* Whether the first request with another state than expected should be in one and is in another. */
static bool state(const struct lab_finding *f, const char *check, char want, char got) {
    size_t i = 0;
    if (!says(f, check, "the states"))
        return false;
    while (f->expected[i] && f->expected[i] == f->found[i])
        i++;
    return f->expected[i] == want && f->found[i] == got;
}

static bool in_first_step(const struct lab_finding *f) {
    return !strncmp(f->label, "step 1,", 7);
}

static bool one_more(const struct lab_finding *f) {
    return is_check(f, "places") && (f->how == LAB_MEMORY || state(f, "places", 'W', 'P'));
}

static bool a_step_late(const struct lab_finding *f) {
    return (state(f, "places", 'P', 'W') && f->found[0] == 'W') || state(f, "arrivals", 'P', 'W');
}

static bool one_a_step(const struct lab_finding *f) {
    return state(f, "places", 'P', 'W') && in_first_step(f);
}

static bool before_arrival(const struct lab_finding *f) {
    return state(f, "arrivals", 'W', 'P');
}

static bool batch_of_one(const struct lab_finding *f) {
    return state(f, "static", 'P', 'W') && in_first_step(f);
}

static bool one_policy(const struct lab_finding *f) {
    return state(f, "places", 'P', 'W') || state(f, "static", 'W', 'P');
}

static bool chunk_ignored(const struct lab_finding *f) {
    return says(f, "chunk", "the plan's tokens");
}

static bool wrong_draws(const struct lab_finding *f) {
    return says(f, "chunk", "the plan's draws");
}

static bool wrong_first(const struct lab_finding *f) {
    return says(f, "chunk", "the plan's first position");
}

static bool empty_piece(const struct lab_finding *f) {
    return says(f, "budget", "entries of the plan") && lab_found(f) > lab_expected(f);
}

static bool budget_ignored(const struct lab_finding *f) {
    return says(f, "budget", "the plan's tokens");
}

static bool cached_read(const struct lab_finding *f) {
    return is_check(f, "cached");
}

static bool refused_early(const struct lab_finding *f) {
    return state(f, "passed over", 'W', '.');
}

static bool passed_over(const struct lab_finding *f) {
    return state(f, "passed over", 'W', 'P') && f->found[1] == 'W';
}

static bool without_room(const struct lab_finding *f) {
    return state(f, "passed over", 'W', 'P');
}

static bool never_ends(const struct lab_finding *f) {
    return is_check(f, "never");
}

static bool takes_from_others(const struct lab_finding *f) {
    return says(f, "later", "entries of the plan");
}

static bool shortage_unsaid(const struct lab_finding *f) {
    return state(f, "later", 'W', 'P');
}

static bool waits_for_first_piece(const struct lab_finding *f) {
    return state(f, "halfway", 'P', 'W') && !in_first_step(f);
}

static bool queue_first(const struct lab_finding *f) {
    return state(f, "preempted", 'W', 'P');
}

static bool newest_first(const struct lab_finding *f) {
    return state(f, "preempted", 'p', 'P') || state(f, "preempted", 'P', 'p');
}

const struct lab_cause lab_4_causes[N_LAB_4_CAUSES] = {
    {"one place more",
     one_more,
     {"With two places, may a third request start when two run?",
      "s->running has max_running entries; a request starts as long as fewer run.",
      "Look at the comparison with max_running in {admit}: < and not <=."}},
    {"a step late",
     a_step_late,
     {"A request arrives at second 2, and a step is planned at second 2. Does it start?",
      "Arrived by now means arrival <= now.",
      "Look at the comparison of arrival and now in {admit}."}},
    {"one a step",
     one_a_step,
     {"Three places are free. How many requests start in this step?",
      "All that there is room for start in the same step.",
      "Look at {admit}: it is a loop over the free places, not one decision."}},
    {"started before it has arrived",
     before_arrival,
     {"What does the scheduler know of a request that arrives in ten seconds?",
      "It is in the list of jobs already, but must not start before its arrival.",
      "Look at what {admit} asks before it starts the first of the queue: "
      "scheduler_next_arrival(s) <= now."}},
    {"a batch of one",
     batch_of_one,
     {"How large is a static batch with three places?",
      "A batch is filled in one step. After its first request has started somebody runs, but in "
      "this step that is no reason to stop.",
      "Look at the place where {admit} asks whether a batch runs: once, before the first start."}},
    {"both policies are one",
     one_policy,
     {"Where in your code is s->options.continuous read?",
      "Continuous: a place is filled the moment it is free. Static: the queue waits until nobody "
      "runs.",
      "Look at the beginning of {admit}: the queue waits if not continuous and somebody runs."}},
    {"a piece is too large",
     chunk_ignored,
     {"A prompt has five tokens and chunk is four. How many are read in the first step?",
      "chunk holds for every piece, for the first one when a request starts and for those behind.",
      "Look at n_tokens in {start} and in {plan_prefills}: the least of what is left, chunk and "
      "the budget."}},
    {"the piece that draws",
     wrong_draws,
     {"After which piece of a prompt is the next token known?",
      "After the piece that reads the last token, however long it is: a full piece can be the last "
      "one, and a short one need not be.",
      "Look at the last argument of add_entry in {start} and {plan_prefills}: n_tokens == left."}},
    {"a piece begins in the wrong place",
     wrong_first,
     {"Four of nine tokens were read. At which position does the next piece begin?",
      "A piece begins at n_read, which scheduler_ran moves on.",
      "Look at the third argument of add_entry in {plan_prefills}."}},
    {"a piece of no tokens",
     empty_piece,
     {"The budget is spent. What does the plan say of the next prompt?",
      "Nothing: an entry of 0 tokens would be a pass of nothing. The request may start all the "
      "same, and waits among those that run.",
      "Look at what {start} and {plan_prefills} do when n_tokens is 0."}},
    {"the budget is spent twice",
     budget_ignored,
     {"Two of four tokens are planned already. How many are left for the next prompt?",
      "add_entry takes each piece from p->budget; token_budget is what the step began with.",
      "Look for token_budget in {start} and {plan_prefills}: p->budget is meant."}},
    {"what is cached is read again",
     cached_read,
     {"Memory has the first three tokens of a prompt. Where does the first piece begin?",
      "admit says in its last argument how many tokens need not be read. n_read begins there.",
      "Look at n_read in {start}: it is set from n_cached before the piece is measured."}},
    {"refused while others run",
     refused_early,
     {"There is no room now. Will there be some later?",
      "Those that run give their memory back. Only when nobody runs will there never be more.",
      "Look at where {start} calls scheduler_stop: only if s->n_running is 0."}},
    {"somebody is passed over",
     passed_over,
     {"The first of the queue does not fit and the second would. Who starts?",
      "Nobody: if small requests went past, a large one could wait for ever.",
      "Look at {admit}: when start returns false and the job is not done, no one behind it is "
      "tried."}},
    {"planned without room",
     without_room,
     {"Who has said that there is memory for the piece?",
      "admit says that a request may begin; reserve takes the memory for the positions that are "
      "written.",
      "Look at {start}: add_entry only after reserve of n_read + n_tokens has said yes."}},
    {"what never fits waits for ever",
     never_ends,
     {"Nobody runs, and the first of the queue does not fit. What will change that?",
      "Nothing. It ends with FINISH_ERROR, and those behind it get their turn, in the same step.",
      "Look at {start}: scheduler_stop when s->n_running is 0. And at {admit}: it goes on after a "
      "job that is done."}},
    {"a new one takes from others",
     takes_from_others,
     {"May a request that begins preempt one that runs?",
      "No: it takes what is free (reserve), and if that is not enough it waits among the running "
      "for the next step.",
      "Look at {start}: reserve, and not make_room; without room there is no entry."}},
    {"the shortage is not told",
     shortage_unsaid,
     {"A running request lacks memory. Should a new one come in?",
      "No: it would take what the first one waits for. p->short_of_memory says so to "
      "scheduler_plan.",
      "Look at {plan_prefills}, where make_room returns false."}},
    {"who has no room for the first piece keeps the others back",
     waits_for_first_piece,
     {"A request may begin, but the room for its first piece is not there in this step. Does it "
      "run?",
      "It does, and waits among the running. Only where admit says no has it not begun.",
      "Look at what {start} returns when reserve says no: true."}},
    {"the queue goes before the preempted",
     queue_first,
     {"Who has waited longer, the first of the queue or one that has run already?",
      "The preempted come first, and as long as one of them waits nobody leaves the queue.",
      "Look at the order of the two loops in {admit}, and at what lets the second one begin."}},
    {"the newest of the preempted comes back first",
     newest_first,
     {"Two requests were preempted. Which of them arrived first?",
      "s->preempted is in order of arrival, and the first one goes on first.",
      "Look at the index into s->preempted in {admit}: 0."}},
};
