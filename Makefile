# samebits: `make help` lists the targets.

# To look for built-in rules, of which none is used, took most of the time of make itself.
MAKEFLAGS += -r
CC       := cc
# make phaseN WERROR= builds in spite of warnings.
WERROR   ?= -Werror
# The bits do not depend on the instruction set (tutorials/numerics.md), so the release build may
# use all of this machine's; the sanitizer build uses the oldest, and the tests compare the two.
ARCH     := -march=native
PACKAGES := openblas jansson libpcre2-8 libutf8proc libxxhash libmicrohttpd libcrypto
APT      := gcc g++ libc6-dev pkg-config libopenblas-dev libjansson-dev libpcre2-dev libutf8proc-dev \
            libxxhash-dev libmicrohttpd-dev libssl-dev libcmocka-dev
CFLAGS   := -std=c11 -D_GNU_SOURCE -Wall -Wextra $(WERROR) -ffp-contract=off -I. \
            $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
# Phase 14 alone needs MPI, and test-all, which installs it; without it the rest is built, and phase
# 14's tests are left out.
MPI      := $(shell pkg-config --exists ompi-c 2>/dev/null && echo yes)
MPI_FLAGS := $(if $(MPI),$(shell pkg-config --cflags ompi-c))
MPI_LIBS  := $(if $(MPI),$(shell pkg-config --libs ompi-c))
# The integer kernels have instructions of their own, whatever the rest may use (ref/integer). Their
# vectors are written out: with -O3, GCC 12 reorders them until registers run out.
X86      := $(filter x86_64%,$(shell $(CC) -dumpmachine 2>/dev/null))
ISA_avx2   := -march=x86-64 -mavx2 -mfma
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
ISAS       := plain avx2 avx512 neon
isa        = $(if $(filter $(ISAS:%=ref/integer/%.c),$(1)),-O2 $(if $(X86),$(ISA_$(patsubst ref/integer/%.c,%,$(1)))) $($(2)_ISA))
say       = $(if $(V),,@echo "  $(1)   $@";)
# The faster of binutils' linkers, where it is there: some 150 programs are linked for the tests.
LINKER   := $(if $(shell command -v ld.gold 2>/dev/null),-fuse-ld=gold)
LIBS     := $(LINKER) -Wl,--as-needed $(shell pkg-config --libs $(PACKAGES) 2>/dev/null) -lpthread -lm
CXXFLAGS := -std=c++17 -fno-strict-aliasing -Wall -Wextra $(WERROR) -ffp-contract=off -DSAMEBITS_EMU -I. \
            $(shell pkg-config --cflags openblas 2>/dev/null)
release_FLAGS := -O3 -g $(ARCH)
SANITIZERS    := -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
arm64_FLAGS   := -O2 -g
asan_FLAGS    := -O1 $(SANITIZERS)
# Tests themselves compile twice as fast so, and run as fast.
release_TEST_FLAGS := -O1
asan_TEST_FLAGS    := -O0
tsan_FLAGS    := -O1 -g1 -fsanitize=thread
# Integer kernels write what is one thread's alone; calls for their long vectors took two thirds of the
# time.
tsan_ISA      := -fno-sanitize=thread
# Without calls at every comparison, which take half of the time: more inputs find more.
fuzz_FLAGS    := -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
                 -fno-sanitize-coverage=trace-cmp

# ---- the CUDA kernels: compiled by nvcc for a GPU, or by g++ for the emulation ------------------
# KERNELS=gpu|emu says which of the two the demos get: gpu where there are nvcc and a GPU.
comma      := ,
NVCC       := $(shell command -v nvcc 2>/dev/null)
GPU_CC     := $(subst .,,$(firstword $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null)))
HAVE_GPU   := $(and $(NVCC),$(GPU_CC))
KERNELS    := $(if $(HAVE_GPU),gpu,emu)
NO_GPU     := $(if $(NVCC),$(if $(GPU_CC)$(filter-out file,$(origin KERNELS)),,nvcc but no GPU here: the \
              kernels run in the emulation on the CPU; KERNELS=gpu CUDA_ARCH=sm_90 compiles them for a GPU))
# CUDA_ARCH=sm_75|sm_80|sm_86|sm_89|sm_90: this machine's GPU, or else three kinds, and PTX for all
# others from 8.0 on. sm_90a is sm_90 with the instructions that no later GPU has.
CUDA_ARCH  := $(if $(GPU_CC),sm_$(GPU_CC),all)
ARCH_all   := -gencode=arch=compute_75,code=sm_75 -gencode=arch=compute_80,code=[sm_80$(comma)compute_80] \
              -gencode=arch=compute_90a,code=sm_90a
# Not -arch=sm_90a: with that nvcc compiles everything twice.
ARCH_one   := $(subst sm_,,$(patsubst sm_90,sm_90a,$(CUDA_ARCH)))
NVCC_FLAGS := -std=c++17 -O3 -fmad=false -I. -Xcompiler -Wall,-ffp-contract=off \
              $(if $(WERROR),-Werror=all-warnings -Wno-deprecated-gpu-targets) \
              $(if $(filter all,$(CUDA_ARCH)),$(ARCH_all),-gencode=arch=compute_$(ARCH_one)$(comma)code=sm_$(ARCH_one))
EMU_SOURCES := $(wildcard gpu/emu/*.cpp)
LIBS_gpu    := $(foreach l,$(dir $(NVCC))../lib64,-L$(l) -Wl$(comma)-rpath$(comma)$(l)) -lcudart -lstdc++ -ldl
LIBS_emu    := -lstdc++

# As many compilers at once as there are processors, unless make was told how many.
PARALLEL     = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

# ---- what exists by which phase: the layering rule --------------------------------------------
PHASES    := 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14
BUILDABLE := $(filter-out $(if $(MPI),,14),$(PHASES))
MODULES_0 := $(filter-out model/parallel/%,$(wildcard model/*.c model/*/*.c ref/*.c ref/*/*.c)) tests/compare.c \
             $(filter-out %/group.c %/serve.c %/page.c %/record.c %/policies.c %/pool.c %/paged.c %/op_times.c, \
               $(wildcard tutorials/common/*.c)) \
             scheduler/fingerprint.c scheduler/logits_chain.c scheduler/draft.c scheduler/sequence.c scheduler/pass.c \
             scheduler/pass_arrays.c scheduler/generate.c scheduler/workload.c
MODULES_1 := $(MODULES_0) scheduler/kv_contiguous.c
MODULES_2 := $(MODULES_1) scheduler/naive_batch.c tutorials/common/group.c
MODULES_3 := $(MODULES_2) scheduler/scheduler.c scheduler/trace.c scheduler/engine.c scheduler/engine_draft.c \
             scheduler/own_caches.c scheduler/engine_metrics.c scheduler/history.c \
             $(addprefix tutorials/common/,serve.c page.c record.c)
MODULES_4 := $(MODULES_3) tutorials/common/policies.c
MODULES_5 := $(MODULES_4) scheduler/block_allocator.c scheduler/kv_pool.c tutorials/common/pool.c
MODULES_6 := $(MODULES_5) scheduler/block_table.c
MODULES_7 := $(MODULES_6) scheduler/prefix_cache.c scheduler/kv_paged.c scheduler/paged_memory.c \
             tutorials/common/paged.c
MODULES_8 := $(MODULES_7) tutorials/common/op_times.c
# The kernels; those that take longest to compile come first. What a phase is linked without is NULL
# in the table of gpu/device.cu.
CUDA_11   := $(wildcard gpu/fast/*/*.cu gpu/*.cu)
CUDA_10   := $(filter-out %/decode_floats.cu %/attention_paged_types.cu gpu/hash_rows.cu,$(CUDA_11))
CUDA_8    := $(filter-out gpu/kv_convert.cu gpu/merge_states.cu %_variants.cu,$(CUDA_10))
CUDA_7    := $(filter-out gpu/attend.cu gpu/attention_paged.cu \
               $(addprefix gpu/fast/,plan/% decode/% prompt/% step/%),$(CUDA_8))
$(foreach p,0 1 2 3 4 5 6,$(eval CUDA_$(p) := $(CUDA_7)))
CUDA_9    := $(CUDA_10)
$(foreach p,9 10 11,$(eval MODULES_$(p) := $(MODULES_8)))
MODULES_12 := $(MODULES_8) scheduler/logprobs.c scheduler/service.c scheduler/service_metrics.c scheduler/service_ranks.c \
              $(filter-out %/demo.c,$(wildcard tutorials/12-server/*.c))
MODULES_13 := $(MODULES_12) scheduler/draft_model.c scheduler/read_along.c scheduler/receipt.c scheduler/receipt_verify.c \
              $(filter-out %/demo.c,$(wildcard tutorials/13-receipts/*.c))
CUDA_12   := $(filter-out gpu/hash_rows.cu,$(CUDA_11))
CUDA_13   := $(CUDA_11)
MPI_MODULES := $(wildcard model/parallel/*.c)
MODULES_14 := $(MODULES_13) $(MPI_MODULES) $(filter-out %/demo.c,$(wildcard tutorials/14-*/*.c))
CUDA_14   := $(CUDA_11)
# Where the CUDA toolkit has NCCL, ranks with GPUs of their own use it.
NCCL      := $(firstword $(wildcard $(foreach l,$(dir $(NVCC))../include/nccl.h /usr/include/nccl.h,$(l))))
NCCL_OBJECT := $(if $(NCCL),build/gpu/model/parallel/nccl.o)
NCCL_LIB  := $(if $(NCCL),-lnccl)
demo       = $(wildcard tutorials/$(1)-*/demo.c tutorials/0$(1)-*/demo.c)

programs = $(patsubst %.c,build/$(1)/%,$(2))
objects  = $(patsubst %.c,build/$(1)/%.o,$(2))
# All tests are one program (tests/programs.c).
renamed_main = $(patsubst tests/%.c,-Dmain=main_of_%,$(filter tests/test_% tests/slow_%,$(1)))

.PHONY: help deps run test test-all test-slow bench numerics cpu fuzz clean compile_commands $(PHASES:%=phase%)

help:
	@echo "make run           install what is missing, build phase 8 and let the model write"
	@echo "make phase0        build ./demo: no cache, every token reads the text again"
	@echo "make phase1        build ./demo: KV cache, static and dynamic"
	@echo "make phase2        build ./demo: several sequences in a padded batch"
	@echo "make phase3        build ./demo: a queue, states, metrics, traces"
	@echo "make phase4        build ./demo: requests start the moment a place is free"
	@echo "make phase5        build ./demo: one pool of blocks for all sequences"
	@echo "make phase6        build ./demo: block tables, and a map of the pool"
	@echo "make phase7        build ./demo: paged caches, preemption, shared prefixes"
	@echo "make phase8        build ./demo: one pass for all, attention through block tables"
	@echo "make phase9        build ./demo: attention over any cache layout, with any mask and score"
	@echo "make phase10       build ./demo: what sequences share is read once for all of them"
	@echo "make phase11       build ./demo: keys and values in 8 bits, and in the 16 of others"
	@echo "make phase12       build ./demo: a server that clients of OpenAI's API talk to"
	@echo "make phase13       build ./demo: receipts of answers, exact scores, drafts that change no bit"
	@echo "make phase14       build ./demo: one model on several processes, which add integers (MPI)"
	@echo "make test          the tests, as release and under ASan and UBSan (6 minutes on 2 slow cores)"
	@echo "make test-all      all of them, in every version of the kernels (about 20 minutes on 2 cores)"
	@echo "make test-slow     the long ones: exp, 2^t, tanh, log of every float, 50 workloads, long tables (minutes)"
	@echo "make test-threads  what has threads of its own, under ThreadSanitizer (a part of test-all)"
	@echo "make test-arm64    the same bits on ARM: the engine and its tests under qemu (Debian)"
	@echo "make check OP=rmsnorm KERNEL=mine.cu   your kernel of an op beside the reference and ours"
	@echo "make lab5          your block allocator in the engine, graded (0 to 11: tutorials/labs.md)"
	@echo "make labs          how far you are with the labs"
	@echo "make grade DIR=submissions LAB=5   a folder of files, graded into a CSV"
	@echo "make mutate        break the kernels, one small break at a time: caught? (an hour)"
	@echo "make bench         all measurements, each beside its limit (tests/bench/README.md)"
	@echo "make numerics      the program of tutorials/numerics.md: same sums on every BLAS kernel?"
	@echo "make cpu           the program of tutorials/cpu.md: one product in eight ways, on this CPU"
	@echo "make fuzz          fuzz the readers of files and requests for a minute each (needs clang)"
	@echo "make deps          install missing packages (apt; called by the targets above)"
	@echo "make compile_commands   compile_commands.json for editors (needs bear)"
	@echo "make clean         remove everything that was built"
	@echo "With WERROR= behind it, warnings are no errors; KERNELS=gpu|emu and CUDA_ARCH: README.md"

phase14 test-all: PACKAGES += ompi-c
phase14 test-all: APT += libopenmpi-dev openmpi-bin

# Silent when all is there. The other targets build in a second make, which sees what it installed.
deps:
	@if ! (command -v $(CC) && command -v g++ && command -v pkg-config && \
	       pkg-config --exists $(PACKAGES) cmocka) >/dev/null 2>&1; then \
	    sudo=$$([ $$(id -u) = 0 ] || echo sudo); \
	    echo "installing: $(APT)"; \
	    command -v apt-get >/dev/null || \
	        { echo "no apt-get here: install the development packages of" \
	               "$(PACKAGES) and cmocka yourself"; exit 1; }; \
	    $$sudo apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq $(APT) >/dev/null; \
	fi

run: phase8
	./demo --prompt "Write a short story about a robot who learns to paint."

$(PHASES:%=phase%): phase%: deps
	$(if $(NO_GPU),@echo "$(NO_GPU)")
	@$(MAKE) --no-print-directory $(PARALLEL) build/release/demo$*
	@cp build/release/demo$* demo.new && mv -f demo.new demo
	@echo "built ./demo for phase $*; ./demo --help lists its options"

cpu: deps
	@$(MAKE) --no-print-directory build/release/tutorials/cpu/ladder
	@build/release/tutorials/cpu/ladder

numerics: deps
	@$(MAKE) --no-print-directory build/release/tutorials/numerics/same_sums
	@build/release/tutorials/numerics/same_sums

compile_commands: deps clean
	@command -v bear >/dev/null || { echo "this needs bear: apt-get install bear"; exit 1; }
	bear -- $(MAKE) build-test build/release/tutorials/numerics/same_sums

clean:
	rm -rf build demo compile_commands.json

# ---- how things are built -----------------------------------------------------------------------
# $(1) is release, asan, tsan or fuzz; tsan has no kernels, because the emulation uses the hooks of
# ThreadSanitizer itself. The emulation's own checks need the compiler to tell of every
# memory access (-fsanitize=thread,alignment at compile time, see gpu/emu/memory_hooks.cpp); under
# ASan, the sanitizers look instead: ASan where memory is accessed, so UBSan need not, which takes
# half of the compile time. Where variables are at each instruction (-fvar-tracking) takes a quarter
# of it; reports only name lines. -O2 takes half as long again as -O1, and makes no test faster.
release_KERNEL_FLAGS := -O1 -g -fno-var-tracking -fsanitize=thread,alignment
arm64_KERNEL_FLAGS   := -O1 -g -fno-var-tracking -fsanitize=thread,alignment
asan_KERNEL_FLAGS    := -Og $(SANITIZERS) \
                        -fno-sanitize=null,alignment,object-size,pointer-overflow
# Where ASan is to look at kernels, too, as in test-all: ASAN_KERNELS=asan. Without, the sanitizer
# build has the kernels of the release build, which spares a quarter of the compile time.
ASAN_KERNELS := release
kernels_of    = $(if $(filter asan,$(1)),$(ASAN_KERNELS),$(1))
# $(2): the phase.
gpu_objects = $(patsubst gpu/%.cu,build/gpu/%.o,$(CUDA_$(2)))
emu_objects = $(patsubst %.cu,build/$(call kernels_of,$(1))/%.cu.o,$(CUDA_$(2))) \
              $(patsubst %.cpp,build/$(1)/%.o,$(EMU_SOURCES))
# The demos of the sanitizer build are for tests that need no GPU, and cuBLAS takes long to load.
release_KERNELS := $(KERNELS)
asan_KERNELS    := emu
arm64_KERNELS   := emu
tsan_KERNELS    := none
kernel_objects = $(call $($(1)_KERNELS)_objects,$(1),$(2))

# A file that holds a setting and is new when that has changed: what depends on it is built again.
define setting
build/settings/$(1): FORCE
	@mkdir -p $$(@D); echo '$(2)' | cmp -s - $$@ || echo '$(2)' >$$@
endef
FORCE:
.PHONY: FORCE
$(eval $(call setting,release-kernels,$(release_KERNELS)))
$(eval $(call setting,asan-kernels,$(ASAN_KERNELS)))
$(eval $(call setting,arm64-kernels,$(arm64_KERNELS)))
$(eval $(call setting,tsan-kernels,$(tsan_KERNELS)))
$(eval $(call setting,cuda-arch,$(CUDA_ARCH)))

define rules
build/$(1)/%.o: %.c
	@mkdir -p $$(@D)
	$$(call say,cc )$$(CC) $$(CFLAGS) $$($(1)_FLAGS) $$(call isa,$$<,$(1)) $$(if $$(filter model/parallel/%,$$<),$$(MPI_FLAGS)) \
	    $$(if $$(filter tests/test_%,$$<),$$($(1)_TEST_FLAGS)) $$(call renamed_main,$$<) -MMD -MP -c $$< -o $$@
build/$(1)/%.o: %.cpp
	@mkdir -p $$(@D)
	$$(call say,g++)$$(CXX) $$(CXXFLAGS) $$($(1)_FLAGS) -MMD -MP -c $$< -o $$@
build/$(1)/gpu/%.cu.o: gpu/%.cu
	@mkdir -p $$(@D)
	$$(call say,g++)$$(CXX) $$(CXXFLAGS) $$($(1)_KERNEL_FLAGS) -MMD -MP -x c++ -c $$< -o $$@
build/$(1)/demo%:
	$$(call say,cc )$$(CC) $$($(1)_FLAGS) $$(filter %.o,$$^) -o $$@ $$(LIBS_$$($(1)_KERNELS)) $$(LIBS)
build/$(1)/emu-demo%:
	$$(call say,cc )$$(CC) $$($(1)_FLAGS) $$(filter %.o,$$^) -o $$@ $$(LIBS_emu) $$(LIBS)
build/$(1)/tutorials/cpu/ladder: $$(call objects,$(1),tutorials/cpu/ladder.c $$(wildcard ref/integer/[!l]*.c) \
                                   model/error.c)
	$$(call say,cc )$$(CC) $$($(1)_FLAGS) $$^ -o $$@ $$(LIBS)
build/$(1)/tutorials/numerics/%: build/$(1)/tutorials/numerics/%.o
	$$(call say,cc )$$(CC) $$($(1)_FLAGS) $$^ -o $$@ $$(LIBS)
$(foreach p,$(PHASES),
build/$(1)/demo$(p): $$(call kernel_objects,$(1),$(p)) build/settings/$(1)-kernels \
                     $$(call objects,$(1),$$(call demo,$(p)) $$(MODULES_$(p)))
build/$(1)/emu-demo$(p): $$(call emu_objects,$(1),$(p)) build/settings/$(1)-kernels \
                         $$(call objects,$(1),$$(call demo,$(p)) $$(MODULES_$(p))))
endef
$(eval $(call rules,release))
$(eval $(call rules,asan))
$(eval $(call rules,arm64))
$(eval $(call rules,tsan))

$(foreach b,release asan,build/$(b)/demo14 build/$(b)/emu-demo14): LIBS += $(MPI_LIBS)
build/release/demo14: $(if $(filter gpu,$(release_KERNELS)),$(NCCL_OBJECT))
build/release/demo14: LIBS += $(if $(filter gpu,$(release_KERNELS)),$(NCCL_LIB))
build/gpu/model/parallel/%.o: model/parallel/%.cu build/settings/cuda-arch
	@mkdir -p $(@D)
	$(call say,nvcc)$(NVCC) $(NVCC_FLAGS) -MMD -MP -c $< -o $@

# The compiler does not tell that the page is in it.
$(foreach b,release asan arm64 tsan,build/$(b)/tutorials/common/page.o): tutorials/common/page.html

build/gpu/%.o: gpu/%.cu build/settings/cuda-arch
	@mkdir -p $(@D)
	$(call say,nvcc)$(NVCC) $(NVCC_FLAGS) -MMD -MP -c $< -o $@

include tests/labs/labs.mk
include tests/tests.mk

.SECONDARY:
# The labs, which ask often, read none, or those of what they link.
-include $(if $(filter lab-settings,$(MAKECMDGOALS)),,$(shell find \
    $(if $(filter lab-program,$(MAKECMDGOALS)),build/release build/asan/tests/labs,build) -name '*.d' 2>/dev/null))
