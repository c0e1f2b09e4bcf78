/* tensor_core.cpp - what gpu/ptx/tensor_core.h promises, for the emulation, and votes and shuffles:
 * the warp operations that compute something. */
#include "gpu/emu/engine.h"

namespace emu {

static const uint32_t all_lanes = 0xffffffffu;

/* The thread behind lane `lane` of the running thread's warp. */
static struct cuda_thread *lane_thread(unsigned lane) {
    return &self->worker->threads[self->number / WARP * WARP + lane];
}

static void need_all_lanes(const struct emu_warp_op *op, uint32_t lanes) {
    if (lanes != all_lanes)
        fault(self, EMU_WARP_LANE, "%s at %s:%d needs all 32 lanes, but only lanes %08x take part",
              op->name, op->file, op->line, lanes);
}

/* Like SAMEBITS_PTX, which compiles to a trap for older GPUs. */
static void need_instruction(const char *name) {
    if (built_for() < 80)
        fault(self, EMU_NO_INSTRUCTION, "%s does not exist below compute capability 8.0", name);
}

/* ---- votes and sums ------------------------------------------------------------------------- */

struct reduce_op : emu_warp_op {
    enum emu_reduce how;
    uint32_t value, result;
};

static uint32_t combine(enum emu_reduce how, uint32_t a, uint32_t b) {
    switch (how) {
    case EMU_ADD:
        return a + b;
    case EMU_MAX:
        return max(a, b);
    case EMU_MAX_SIGNED:
        return (uint32_t)max((int32_t)a, (int32_t)b);
    case EMU_OR:
        return a | b;
    case EMU_AND:
        return a & b;
    }
    return 0;
}

static void complete_reduce(struct emu_warp_op *const *ops, uint32_t lanes) {
    struct reduce_op *first = static_cast<struct reduce_op *>(ops[__builtin_ctz(lanes)]);
    uint32_t result = first->value;
    for (uint32_t rest = lanes & (lanes - 1); rest; rest &= rest - 1)
        result = combine(first->how, result,
                         static_cast<struct reduce_op *>(ops[__builtin_ctz(rest)])->value);
    for (uint32_t rest = lanes; rest; rest &= rest - 1)
        static_cast<struct reduce_op *>(ops[__builtin_ctz(rest)])->result = result;
}

/* ---- shuffles ------------------------------------------------------------------------------- */

struct shuffle_op : emu_warp_op {
    enum emu_shuffle how;
    int operand, width;
    uint64_t value, result;
};

/* The lane that `lane` reads from; its own where the segment of `width` lanes ends. */
static unsigned shuffle_source(const struct shuffle_op *op, unsigned lane) {
    int width = op->width, first = (int)lane / width * width, last = first + width - 1;
    int from = (int)lane;
    switch (op->how) {
    case EMU_INDEX:
        return (unsigned)(first + (op->operand & (width - 1)));
    case EMU_UP:
        from -= op->operand & (WARP - 1);
        return from < first ? lane : (unsigned)from;
    case EMU_DOWN:
        from += op->operand & (WARP - 1);
        return from > last ? lane : (unsigned)from;
    case EMU_XOR:
        from ^= op->operand & (WARP - 1);
        return from > last ? lane : (unsigned)from;
    }
    return lane;
}

static void complete_shuffle(struct emu_warp_op *const *ops, uint32_t lanes) {
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        struct shuffle_op *op = static_cast<struct shuffle_op *>(ops[lane]);
        unsigned from = shuffle_source(op, lane);
        if (!(lanes >> from & 1))
            fault(lane_thread(lane), EMU_WARP_LANE,
                  "%s at %s:%d reads from lane %u, which takes no part (lanes %08x do)", op->name,
                  op->file, op->line, from, lanes);
        op->result = static_cast<struct shuffle_op *>(ops[from])->value;
    }
}

/* ---- mma ------------------------------------------------------------------------------------ */

enum { MMA_M = 16, MMA_N = 8, MMA_K = 32 };

struct mma_op : emu_warp_op {
    int32_t *d;
    const uint32_t *a, *b;
    bool a_signed, b_signed;
    int n; /* matrices b */
};

/* Both operands by their k: the bytes that the lanes hold, and what they mean. */
struct mma_operands {
    uint8_t a_bytes[MMA_M][MMA_K], b_bytes[MMA_N][MMA_K];
    int16_t a[MMA_M][MMA_K], b[MMA_N][MMA_K];
};

static void widen(int16_t *to, const uint8_t *from, int n, bool is_signed) {
    const int16_t sign = is_signed ? 0x80 : 0;
    for (int i = 0; i < n; i++)
        to[i] = (int16_t)((from[i] ^ sign) - sign);
}

/* The product with matrix number `which` of b. */
static void multiply(struct emu_warp_op *const *ops, struct mma_operands *x, bool b_signed,
                     int which) {
    for (int lane = 0; lane < WARP; lane++) {
        const uint32_t *b = static_cast<const struct mma_op *>(ops[lane])->b + 2 * which;
        memcpy(&x->b_bytes[lane / 4][lane % 4 * 4], &b[0], 4);
        memcpy(&x->b_bytes[lane / 4][lane % 4 * 4 + 16], &b[1], 4);
    }
    widen(x->b[0], x->b_bytes[0], MMA_N * MMA_K, b_signed);
    for (int lane = 0; lane < WARP; lane++) {
        int32_t *d = static_cast<const struct mma_op *>(ops[lane])->d + 4 * which;
        for (int i = 0; i < 4; i++) {
            const int16_t *row = x->a[lane / 4 + i / 2 * 8], *column = x->b[lane % 4 * 2 + i % 2];
            int32_t sum = 0;
            for (int k = 0; k < MMA_K; k++)
                sum += row[k] * column[k];
            d[i] = (int32_t)((uint32_t)d[i] + (uint32_t)sum);
        }
    }
}

/* Collects a and b from all lanes, multiplies, and hands out d. */
static void complete_mma(struct emu_warp_op *const *ops, uint32_t lanes) {
    const struct mma_op *first = static_cast<struct mma_op *>(ops[__builtin_ctz(lanes)]);
    need_all_lanes(first, lanes);
    struct mma_operands x;
    for (int lane = 0; lane < WARP; lane++) {
        const struct mma_op *op = static_cast<struct mma_op *>(ops[lane]);
        int g = lane / 4, k = lane % 4 * 4;
        memcpy(&x.a_bytes[g][k], &op->a[0], 4);
        memcpy(&x.a_bytes[g + 8][k], &op->a[1], 4);
        memcpy(&x.a_bytes[g][k + 16], &op->a[2], 4);
        memcpy(&x.a_bytes[g + 8][k + 16], &op->a[3], 4);
    }
    widen(x.a[0], x.a_bytes[0], MMA_M * MMA_K, first->a_signed);
    for (int i = 0; i < first->n; i++)
        multiply(ops, &x, first->b_signed, i);
}

enum { MMA_F16_K = 16 };

struct mma_f16_op : emu_warp_op {
    float *d;
    const uint32_t *a, *b;
};

static double half_value(uint32_t bits) {
    double fraction = (double)(bits & 0x3ff), sign = bits & 0x8000 ? -1 : 1;
    int exponent = (int)(bits >> 10 & 31);
    if (exponent == 31)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent ? ldexp(fraction + 1024, exponent - 25) : ldexp(fraction, -24));
}

/* Both halves of a register, at the k of lane t. */
static void put_halves(double *row, int k, uint32_t halves) {
    row[k] = half_value(halves & 0xffff);
    row[k + 1] = half_value(halves >> 16);
}

/* The sums are exact, as the rule wants them; one that is not is rounded in the end. */
static void complete_mma_f16(struct emu_warp_op *const *ops, uint32_t lanes) {
    need_all_lanes(ops[__builtin_ctz(lanes)], lanes);
    double a[MMA_M][MMA_F16_K], b[MMA_N][MMA_F16_K];
    for (int lane = 0; lane < WARP; lane++) {
        const struct mma_f16_op *op = static_cast<struct mma_f16_op *>(ops[lane]);
        int g = lane / 4, k = lane % 4 * 2;
        put_halves(a[g], k, op->a[0]);
        put_halves(a[g + 8], k, op->a[1]);
        put_halves(a[g], k + 8, op->a[2]);
        put_halves(a[g + 8], k + 8, op->a[3]);
        put_halves(b[g], k, op->b[0]);
        put_halves(b[g], k + 8, op->b[1]);
    }
    for (int lane = 0; lane < WARP; lane++) {
        struct mma_f16_op *op = static_cast<struct mma_f16_op *>(ops[lane]);
        for (int i = 0; i < 4; i++) {
            const double *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
            double sum = (double)op->d[i];
            for (int k = 0; k < MMA_F16_K; k++)
                sum += row[k] * column[k];
            op->d[i] = (float)sum;
        }
    }
}

/* ---- ldmatrix ------------------------------------------------------------------------------- */

struct load_op : emu_warp_op {
    uint32_t *out;
    const void *row;
    bool transpose;
};

static void complete_load(struct emu_warp_op *const *ops, uint32_t lanes) {
    need_all_lanes(ops[__builtin_ctz(lanes)], lanes);
    const struct load_op *first = static_cast<struct load_op *>(ops[0]);
    for (int i = 0; i < 4; i++) {
        uint16_t matrix[8][8];
        for (int row = 0; row < 8; row++) {
            struct load_op *op = static_cast<struct load_op *>(ops[8 * i + row]);
            struct cuda_thread *t = lane_thread((unsigned)(8 * i + row));
            if ((uintptr_t)op->row % 16 != 0)
                fault(t, EMU_MISALIGNED, "%s at %s:%d: the row %p is not a multiple of 16",
                      op->name, op->file, op->line, op->row);
            check_access(t, op->row, sizeof matrix[row], ACCESS_READ, NULL);
            memcpy(matrix[row], op->row, sizeof matrix[row]);
        }
        for (int lane = 0; lane < WARP; lane++) {
            int g = lane / 4, t = lane % 4 * 2;
            uint32_t low = first->transpose ? matrix[t][g] : matrix[g][t];
            uint32_t high = first->transpose ? matrix[t + 1][g] : matrix[g][t + 1];
            static_cast<struct load_op *>(ops[lane])->out[i] = high << 16 | low;
        }
    }
}

} // namespace emu

using namespace emu;

uint64_t emu_warp_shuffle(enum emu_shuffle how, uint32_t mask, uint64_t value, int operand,
                          int width, const char *file, int line) {
    static const char *const names[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync",
                                        "__shfl_xor_sync"};
    struct shuffle_op op = {
        {names[how], file, line, mask, complete_shuffle, false}, how, operand, width, value, 0};
    if (width < 1 || width > WARP || (width & (width - 1)))
        fault(self, EMU_WARP_LANE, "%s at %s:%d: width %d is not a power of 2 up to 32", op.name,
              file, line, width);
    emu_warp_wait(&op);
    return op.result;
}

uint32_t emu_warp_reduce(enum emu_reduce how, const char *name, uint32_t mask, uint32_t value,
                         const char *file, int line) {
    struct reduce_op op = {{name, file, line, mask, complete_reduce, false}, how, value, 0};
    emu_warp_wait(&op);
    return op.result;
}

unsigned emu_lane(void) {
    return self->number % WARP;
}

void emu_warp_sync(uint32_t mask, const char *file, int line) {
    struct emu_warp_op op = {"__syncwarp", file, line, mask, NULL, true};
    emu_warp_wait(&op);
}

void emu_mma(int32_t *d, const uint32_t *a, bool a_signed, const uint32_t *b, bool b_signed,
             const char *file, int line, int n) {
    need_instruction("mma");
    struct mma_op op = {
        {"mma", file, line, all_lanes, complete_mma, false}, d, a, b, a_signed, b_signed, n};
    emu_warp_wait(&op);
}

void emu_mma_f16(float *d, const uint32_t *a, const uint32_t *b, const char *file, int line) {
    need_instruction("mma");
    struct mma_f16_op op = {{"mma", file, line, all_lanes, complete_mma_f16, false}, d, a, b};
    emu_warp_wait(&op);
}

void emu_load_matrices(uint32_t *out, bool transpose, const void *row, const char *file, int line) {
    need_instruction("ldmatrix");
    struct load_op op = {
        {"ldmatrix", file, line, all_lanes, complete_load, false}, out, row, transpose};
    emu_warp_wait(&op);
}

/* ---- cp.async ------------------------------------------------------------------------------- */

/*
 * A copy happens as late as it may: when somebody waits for it. Until then its place holds junk, so
 * a forgotten wait is seen. The place counts as written at both ends of the copy, because a real
 * GPU writes it some time between.
 */
void emu_copy_start(void *to, const void *from, size_t from_bytes) {
    struct cuda_thread *t = self;
    need_instruction("cp.async");
    emu_check_aligned(to, 16);
    emu_check_aligned(from, 16);
    check_access(t, from, from_bytes, ACCESS_READ, NULL); /* though nobody may wait for it */
    check_access(t, to, 16, ACCESS_WRITE, NULL);
    fill_with_junk(to, 16);
    t->copies.push_back({to, from, from_bytes});
}

void emu_copy_commit(void) {
    struct cuda_thread *t = self;
    size_t grouped = 0;
    for (size_t n : t->copy_groups)
        grouped += n;
    t->copy_groups.push_back(t->copies.size() - grouped);
}

void emu_copy_wait(size_t n_groups_left) {
    struct cuda_thread *t = self;
    size_t n_copies = 0, n_groups = 0;
    for (; t->copy_groups.size() - n_groups > n_groups_left; n_groups++)
        n_copies += t->copy_groups[n_groups];
    for (size_t i = 0; i < n_copies; i++) {
        const struct pending_copy *copy = &t->copies[i];
        check_access(t, copy->from, copy->from_bytes, ACCESS_READ, NULL);
        check_access(t, copy->to, 16, ACCESS_WRITE, NULL);
        memset(copy->to, 0, 16);
        if (copy->from_bytes)
            memcpy(copy->to, copy->from, copy->from_bytes);
    }
    t->copies.erase(t->copies.begin(), t->copies.begin() + (ptrdiff_t)n_copies);
    t->copy_groups.erase(t->copy_groups.begin(), t->copy_groups.begin() + (ptrdiff_t)n_groups);
}
