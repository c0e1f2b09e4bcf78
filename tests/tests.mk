# Building and running the tests, fuzzers and measurements; included by the Makefile.

# One program per file, but all are linked as one, with every module and the helpers; the others are
# links to it (tests/programs.c).
ALL_MODULES  := $(MODULES_13)
TEST_SOURCES := $(wildcard tests/test_*.c)
SLOW_SOURCES := $(wildcard tests/slow_*.c)
PROGRAMS     := $(patsubst tests/%.c,%,$(TEST_SOURCES) $(SLOW_SOURCES))
# Of make check: the grader, which has no kernels, and the program that runs kernels for it.
GRADER       := $(patsubst %,tests/check_%.c,kernel grader process)
TEST_HELPERS := $(filter-out $(TEST_SOURCES) $(SLOW_SOURCES) tests/compare.c $(GRADER) \
                  tests/check_candidate.c tests/programs.c,$(wildcard tests/*.c))
BENCHES      := $(filter-out $(if $(MPI),,%/bench_ranks),$(patsubst %.c,build/release/%,$(wildcard tests/bench/*.c)))
GPU_BENCHES  := $(patsubst tests/%.cu,build/gpu/%,$(wildcard tests/bench/*.cu)) build/gpu/bench/bench_receipts
DEMOS        := $(BUILDABLE:%=build/release/demo%)
FUZZERS      := $(patsubst %.c,build/fuzz/%,$(wildcard tests/fuzz/*.c))

# Every test on the CPU, as release and sanitizer build; those of the ops once more for each version
# of the kernels under the emulation and, where there is a GPU, on it. (attend chooses version 4 itself
# wherever it applies.)
EMU_TESTS    := $(patsubst %.cu,%,$(wildcard tests/emu/*.cu))
KERNEL_TESTS := test_ops test_shared_rows test_shapes test_limits test_attention test_paged_ops test_faults \
                test_sampling test_available test_kv_pool test_naive_batch test_workloads \
                test_paged_workloads test_kv_paged test_attention_paged test_new_tokens test_attend \
                test_attend_faults test_attend_fp8 test_kv_views test_kv_types test_cascade \
                test_states test_plans test_attend_graph test_attend_large test_decode_step test_vectors
on_device = $(foreach t,$(KERNEL_TESTS),"SAMEBITS_DEVICE=$(2) $(1)/tests/$(t)") \
            $(foreach v,1 2 3 4 5 6,$(foreach t,test_ops test_shapes test_limits, \
              "SAMEBITS_DEVICE=$(2) SAMEBITS_KERNEL=$(v) $(1)/tests/$(t)")) \
            $(foreach v,1 2 3,$(foreach t,test_attention test_attention_paged test_new_tokens, \
              "SAMEBITS_DEVICE=$(2) SAMEBITS_KERNEL=$(v) $(1)/tests/$(t)")) \
            $(foreach v,$(if $(filter gpu,$(2)),attention:2) 2 3,$(foreach t,test_attend test_attend_faults, \
              "SAMEBITS_DEVICE=$(2) SAMEBITS_KERNEL=$(v) $(1)/tests/$(t)"))
GPU_TESTS := $(patsubst %,build/gpu/tests/%,$(KERNEL_TESTS) test_golden test_shared_decoding)

# `make test` leaves out what takes longest (LONG), where another program, build or device does a share
# of it, or tries fewer cases (FEW); `make test-all` is everything, but that the sanitizers get fewer
# cases of each set of the CPU's instructions, of ranks, and of requests to a server whose memory they
# cannot compare. The longest come first.
LONG_release := test_ranks test_rank_faults test_chapters test_fingerprint test_paged_workloads \
                test_attention_paged test_paged_memory test_workloads test_check test_attention test_vectors \
                test_server_limits test_clients test_serve_cli test_bad_gpu test_cli
LONG_asan    := test_ranks test_rank_faults test_ops test_attention test_workloads test_cli \
                test_speculation test_serve_cli test_attention_paged test_bad_gpu test_naive_batch \
                test_paged_workloads test_block_demos test_server_faults test_receipts_cli test_receipts \
                test_engine test_trace test_cli_files test_shared_decoding test_golden test_check \
                test_clients test_server_limits test_html test_fingerprint test_paged_memory \
                test_attend_graph
SHORT_emu    := SAMEBITS_DEVICE=emu SAMEBITS_BATCHES=3
FEW_release  := bad_gpu serve_cli cli attention_paged vectors
FEW_asan     := attention fingerprint attention_paged workloads ops paged_memory attend_graph
BATCHES_release := 60
BATCHES_asan    := 2
on_gpu       := $(if $(HAVE_GPU),$(call on_device,build/gpu,gpu) \
                  $(foreach t,test_golden test_shared_decoding,"SAMEBITS_DEVICE=gpu build/gpu/tests/$(t)"))
# On the CPU, the tests of the ops once more for version 1 and for each set of instructions.
CPU_ISAS     := plain $(shell grep -qw avx2 /proc/cpuinfo 2>/dev/null && echo avx2)
ON_CPU       := test_ops test_shapes test_limits test_attend test_attend_faults
on_cpu        = $(foreach t,$(ON_CPU) $(2), \
                  $(foreach v,KERNEL=1 $(CPU_ISAS:%=ISA=%), \
                    "$(if $(filter test_attend% %/asan few,$(t) $(1) $(3)),SAMEBITS_BATCHES=20 )SAMEBITS_$(v) $(1)/tests/$(t)"))
all_of        = $(call programs,$(1),$(LONG_$(1):%=tests/%.c)) \
                $(call programs,$(1),$(filter-out $(LONG_$(1):%=tests/%.c),$(TEST_SOURCES)))
short_of      = $(filter-out $(call programs,$(1),$(LONG_$(1):%=tests/%.c)),$(call all_of,$(1))) \
                $(EMU_TESTS:%=build/$(1)/%) \
                $(foreach t,$(FEW_$(1)),"SAMEBITS_BATCHES=$(BATCHES_$(1)) build/$(1)/tests/test_$(t)")

test: deps
	@$(MAKE) --no-print-directory $(PARALLEL) build-test
	@tests/run "$(SHORT_emu) SAMEBITS_KERNEL=2 build/release/tests/test_attention" \
	    $(foreach t,test_shared_rows test_decode_step test_kv_views test_states test_limits test_vectors, \
	      "SAMEBITS_DEVICE=emu build/release/tests/$(t)") \
	    $(foreach t,test_attention test_ops test_attend test_cascade test_attention_paged \
	      test_new_tokens, \
	      "$(SHORT_emu) build/release/tests/$(t)") \
	    $(foreach v,1 2 3 4 5 6,"SAMEBITS_DEVICE=emu SAMEBITS_KERNEL=$(v) build/release/tests/test_shapes") \
	    $(foreach v,1 2 3,$(foreach t,test_attention_paged test_new_tokens, \
	      "$(SHORT_emu) SAMEBITS_KERNEL=$(v) build/release/tests/$(t)")) \
	    "$(SHORT_emu) SAMEBITS_KERNEL=3 build/release/tests/test_attend" \
	    "tests/labs/test --few 1" $(call on_cpu,build/release,,few) $(call short_of,asan) \
	    $(call short_of,release) $(on_gpu)

test-all: deps
	@$(MAKE) --no-print-directory $(PARALLEL) ASAN_KERNELS=asan build-test $(call lab_builds,$(ALL_LABS)) \
	    $(tsan_programs)
	@tests/run $(call all_of,release) $(tsan_tests) $(foreach l,$(ALL_LABS),"tests/labs/test $(l)") \
	    $(call all_of,asan) \
	    $(call on_device,build/release,emu) "SAMEBITS_DEVICE=emu build/asan/tests/test_ops" \
	    "SAMEBITS_DEVICE=emu build/asan/tests/test_faults" $(call on_cpu,build/release,test_attention) \
	    $(call on_cpu,build/asan,test_attention) \
	    $(EMU_TESTS:%=build/release/%) $(EMU_TESTS:%=build/asan/%) $(on_gpu) \
	    "tests/browser build/release"

test-slow: deps
	@$(MAKE) --no-print-directory $(call programs,release,$(SLOW_SOURCES)) $(DEMOS) \
	    build/release/tests/test_attend build/release/tests/test_ranks \
	    build/release/tests/test_rank_faults \
	    $(if $(MPI),build/release/tests/ranks/worker build/release/emu-demo14) \
	    $(if $(HAVE_GPU),build/gpu/tests/slow_attend build/gpu/tests/test_attend)
	@tests/run $(call programs,release,$(SLOW_SOURCES)) \
	    "SAMEBITS_DEVICE=emu build/release/tests/slow_attend" \
	    "SAMEBITS_BATCHES=4000 build/release/tests/test_attend" \
	    "SAMEBITS_BATCHES=200 build/release/tests/test_ranks" \
	    "SAMEBITS_BATCHES=200 build/release/tests/test_rank_faults" \
	    $(if $(HAVE_GPU),"SAMEBITS_DEVICE=gpu build/gpu/tests/slow_attend" \
	                     "SAMEBITS_DEVICE=gpu SAMEBITS_BATCHES=20000 build/gpu/tests/test_attend")

bench: deps
	@$(MAKE) --no-print-directory $(PARALLEL) build-bench

# What has threads of its own, under ThreadSanitizer: the engine behind a service, and the server.
THREAD_TESTS   := test_threads test_service test_server test_server_faults test_server_limits
THREAD_HELPERS := $(patsubst %,tests/%.c,served command tiny_models device checkpoint_writer)
tsan_programs   = $(THREAD_TESTS:%=build/tsan/tests/%) build/tsan/demo12 build/tsan/demo13
tsan_tests      = $(THREAD_TESTS:%="OPENBLAS_NUM_THREADS=2 build/tsan/tests/%")
build/tsan/tests/programs.o: CFLAGS += '-DPROGRAMS=$(foreach p,$(THREAD_TESTS),X($(p)))'
$(eval $(call setting,thread-programs,$(THREAD_TESTS)))
build/tsan/tests/programs.o: build/settings/thread-programs
build/tsan/tests/programs: $(call objects,tsan,$(THREAD_TESTS:%=tests/%.c) tests/programs.c \
                             $(THREAD_HELPERS) $(ALL_MODULES))
	$(call say,cc )$(CC) $(tsan_FLAGS) $^ -o $@ $(LIBS) -lcmocka
$(THREAD_TESTS:%=build/tsan/tests/%): build/tsan/tests/programs
	@ln -sf programs $@
test-threads: deps
	@$(MAKE) --no-print-directory $(PARALLEL) $(tsan_programs)
	@tests/run $(tsan_tests)
.PHONY: test-threads

# The same bits on ARM, under qemu, with Debian's compiler and libraries for it. Without phase 14,
# which is phase 13 on several processes and needs an MPI.
ARM64_MAKE    = PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig \
                $(MAKE) --no-print-directory CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++
ARM64_DEMOS  := $(filter-out 14,$(PHASES))
test-arm64: deps
	@tests/arm64 install
	@$(ARM64_MAKE) $(PARALLEL) build/arm64/tests/programs $(ARM64_DEMOS:%=build/arm64/demo%)
	@$(MAKE) --no-print-directory $(PARALLEL) $(ARM64_DEMOS:%=build/release/emu-demo%)
	@tests/arm64 run $(ARM64_DEMOS)
.PHONY: test-arm64

# Breaks the kernels on purpose, one by one: do the tests notice?
.PHONY: mutate
mutate: deps
	@command -v python3 >/dev/null || { echo "make mutate needs python3: apt-get install python3"; exit 1; }
	@tests/mutate

build-test: $(foreach b,release asan,$(call programs,$(b),$(TEST_SOURCES)) $(BUILDABLE:%=build/$(b)/demo%) \
              build/$(b)/emu-demo0 build/$(b)/emu-demo1 build/$(b)/emu-demo12 \
              build/$(b)/tests/check_kernel build/$(b)/tests/check_candidate \
              $(if $(MPI),build/$(b)/tests/ranks/worker)) build/release/emu-demo4 \
            build/release/emu-demo8 build/release/emu-demo11 $(if $(MPI),build/release/emu-demo14) \
            $(EMU_TESTS:%=build/release/%) $(EMU_TESTS:%=build/asan/%) $(call lab_builds,1) \
            $(if $(HAVE_GPU),$(GPU_TESTS))
build-bench: $(BENCHES) $(if $(HAVE_GPU),$(GPU_BENCHES))
	@for b in $^; do $$b || exit 1; done

fuzz: deps
	@command -v clang >/dev/null || { echo "make fuzz needs clang: apt-get install clang"; exit 1; }
	@$(MAKE) --no-print-directory $(FUZZERS)
	@for f in $(FUZZERS); do mkdir -p $$f.corpus && \
	    $$f -max_total_time=60 -max_len=4096 -verbosity=0 -print_final_stats=1 $$f.corpus data/prompts \
	        tests/fixtures/chat_templates tests/fixtures/requests || exit 1; \
	done

define test_rules
build/$(1)/tests/emu/%.cu.o: tests/emu/%.cu
	@mkdir -p $$(@D)
	$$(call say,g++)$$(CXX) $$(CXXFLAGS) $$($(1)_KERNEL_FLAGS) -MMD -MP -x c++ -c $$< -o $$@
build/$(1)/tests/emu/%: build/$(1)/tests/emu/%.cu.o $$(filter build/$(1)/gpu/emu/%,$$(call emu_objects,$(1),11))
	$$(call say,g++)$$(CXX) $$($(1)_FLAGS) $$^ -o $$@ $$(LIBS) -lcmocka
build/$(1)/tests/programs.o: CFLAGS += '-DPROGRAMS=$(foreach p,$(PROGRAMS),X($(p)))'
build/$(1)/tests/programs.o: build/settings/programs
build/$(1)/tests/programs: $$(call objects,$(1),$$(TEST_SOURCES) $$(SLOW_SOURCES))
build/$(1)/tests/check_kernel: $$(call objects,$(1),$$(GRADER) $$(TEST_HELPERS) $$(ALL_MODULES))
	$$(call say,cc )$$(CC) $$($(1)_FLAGS) $$^ -o $$@ $$(LIBS) -lcmocka
build/$(1)/tests/programs build/$(1)/tests/check_candidate: build/$(1)/tests/%: build/$(1)/tests/%.o \
        $$(call emu_objects,$(1),11) $$(call objects,$(1),$$(TEST_HELPERS) $$(ALL_MODULES)) \
        build/settings/$(1)-kernels
	$$(call say,cc )$$(CC) $$($(1)_FLAGS) $$(filter %.o,$$^) -o $$@ $$(LIBS_emu) $$(LIBS) -lcmocka
build/$(1)/tests/ranks/worker: build/$(1)/tests/ranks/worker.o $$(call emu_objects,$(1),11) \
        $$(call objects,$(1),$$(MPI_MODULES) $$(TEST_HELPERS) $$(ALL_MODULES)) build/settings/$(1)-kernels
	$$(call say,cc )$$(CC) $$($(1)_FLAGS) $$(filter %.o,$$^) -o $$@ $$(LIBS_emu) $$(LIBS) $$(MPI_LIBS) -lcmocka
$(PROGRAMS:%=build/$(1)/tests/%): build/$(1)/tests/programs
	@ln -sf programs $$@
endef
$(eval $(call setting,programs,$(PROGRAMS)))
$(eval $(call test_rules,release))
$(eval $(call test_rules,asan))
$(eval $(call test_rules,arm64))

build/release/tests/bench/bench_ranks: LIBS += $(MPI_LIBS)
build/release/tests/bench/bench_ranks: $(call objects,release,$(MPI_MODULES))
$(BENCHES): %: %.o $(call objects,release,$(ALL_MODULES))
	$(call say,cc )$(CC) $(release_FLAGS) $^ -o $@ $(LIBS)

build/gpu/bench/%.o: tests/bench/%.cu build/settings/cuda-arch
	@mkdir -p $(@D)
	$(call say,nvcc)$(NVCC) $(NVCC_FLAGS) -MMD -MP -c $< -o $@
build/gpu/bench/%: build/gpu/bench/%.o $(call objects,release,$(ALL_MODULES)) $(call gpu_objects,,11)
	$(call say,cc )$(CC) $(release_FLAGS) $^ -o $@ $(LIBS_gpu) $(LIBS)
build/gpu/bench/bench_receipts: build/release/tests/bench/bench_receipts.o \
        $(call objects,release,$(ALL_MODULES)) $(call gpu_objects,,11)
	@mkdir -p $(@D)
	$(call say,cc )$(CC) $(release_FLAGS) $^ -o $@ $(LIBS_gpu) $(LIBS)
build/gpu/bench/bench_ranks: build/release/tests/bench/bench_ranks.o $(NCCL_OBJECT) \
        $(call objects,release,$(MPI_MODULES) $(ALL_MODULES)) $(call gpu_objects,,11)
	@mkdir -p $(@D)
	$(call say,cc )$(CC) $(release_FLAGS) $^ -o $@ $(LIBS_gpu) $(NCCL_LIB) $(LIBS) $(MPI_LIBS)
build/gpu/tests/programs: $(call gpu_objects,,11) $(call objects,release,tests/programs.c \
                          $(TEST_SOURCES) $(SLOW_SOURCES) $(TEST_HELPERS) $(ALL_MODULES))
	@mkdir -p $(@D)
	$(call say,cc )$(CC) $(release_FLAGS) $^ -o $@ $(LIBS_gpu) $(LIBS) -lcmocka
$(PROGRAMS:%=build/gpu/tests/%): build/gpu/tests/programs
	@ln -sf programs $@
# For a machine with a GPU: SAMEBITS_DEVICE=gpu mpirun -n 2 build/gpu/tests/ranks/worker.
build/gpu/tests/ranks/worker: $(call gpu_objects,,11) $(NCCL_OBJECT) $(call objects,release,tests/ranks/worker.c \
                              $(MPI_MODULES) $(TEST_HELPERS) $(ALL_MODULES))
	@mkdir -p $(@D)
	$(call say,cc )$(CC) $(release_FLAGS) $^ -o $@ $(LIBS_gpu) $(NCCL_LIB) $(LIBS) $(MPI_LIBS) -lcmocka

# make check OP=rmsnorm KERNEL=mine.cu: tests/check builds the targets below it, with KERNELS=gpu or
# emu. A reader's warnings are no errors; what the file defines gets names that ours do not have.
CHECK      := build/check/$(KERNELS)/$(OP)
READER_emu := g++ $(filter-out -Werror,$(CXXFLAGS)) $(release_KERNEL_FLAGS) -x c++
READER_gpu := $(NVCC) $(filter-out -Werror=%,$(NVCC_FLAGS)) -x cu
RUNTIME    := $(filter build/release/gpu/emu/%,$(call kernel_objects,release,11))
check: deps
	@MAKE='$(MAKE)' tests/check '$(OP)' '$(KERNEL)' $(if $(HAVE_GPU),$(KERNELS),emu)
check-reader:
	@mkdir -p $(CHECK)
	$(if $(V),,@)$(READER_$(KERNELS)) -include tests/check_reader.h -DCHECK_OP=$(OP) \
	    -c '$(KERNEL)' -o $(CHECK)/reader.o
# What our kernels call, and define; and what is no kernel's to define.
build/check/$(KERNELS)/names: $(filter-out $(RUNTIME),$(call kernel_objects,release,11))
	@mkdir -p $(@D)
	@nm $^ | awk 'NF >= 2 && $$(NF - 1) ~ /[A-Z]/ {print $$NF}' | LC_ALL=C sort -u >$@
build/check/$(KERNELS)/runtime: $(RUNTIME)
	@mkdir -p $(@D)
	@$(if $^,nm $^,:) | awk 'NF == 3 && $$2 ~ /[TDBR]/ {print $$3}' | LC_ALL=C sort -u >$@
$(CHECK)/renamed.o: $(CHECK)/reader.o
	@nm $< | awk 'NF == 3 && $$2 ~ /[TDBR]/ && $$3 != "check_use_reader" {print $$3, "reader_" $$3}' \
	    >$(CHECK)/renamed
	@objcopy --redefine-syms=$(CHECK)/renamed $< $@
CANDIDATE := $(call objects,release,tests/check_candidate.c $(TEST_HELPERS) $(ALL_MODULES)) \
             $(call kernel_objects,release,11)
$(CHECK)/candidate: $(CANDIDATE) $(CHECK)/renamed.o
build/check/$(KERNELS)/ours: $(CANDIDATE)
$(CHECK)/candidate build/check/$(KERNELS)/ours:
	@mkdir -p $(@D)
	$(call say,cc )$(CC) $(release_FLAGS) $^ -o $@ $(LIBS_$(KERNELS)) $(LIBS) -lcmocka
.PHONY: check check-reader

build/fuzz/%.o: %.c
	@mkdir -p $(@D)
	$(call say,cc )clang $(CFLAGS) $(fuzz_FLAGS) -MMD -MP -c $< -o $@
build/fuzz/tests/fuzz/%: build/fuzz/tests/fuzz/%.o $(call objects,fuzz,$(filter model/% ref/%,$(MODULES_0)) \
                                                    scheduler/workload.c)
	$(call say,cc )clang $(fuzz_FLAGS) $^ -o $@ $(LIBS)
build/fuzz/tests/fuzz/fuzz_request: $(call objects,fuzz,$(ALL_MODULES))
