# The labs: make lab5 copies a starter, builds the engine with the learner's file in place of the
# project's modules of the same functions, and grades it (tests/labs/README.md). Included by the
# Makefile. Each lab says in tests/labs/NN/lab.mk:
#
#     LAB_5_REPLACES := scheduler/block_allocator.c    the modules whose functions the file defines
#     LAB_5_DEMO     := --quick                        how the phase's demo is run at the end
#     LAB_5_REFUSED  := ref_attend                     functions that would do the work
#     LAB_9_INLINES  := attention_shows         and inline ones, looked for by name, macros expanded
#     LAB_8_EXTRA     = $(call emu_objects,release,11) more objects, for kernels in the emulation:
#                       the grader has none, and compares with the CPU's notes
#     LAB_8_SPEED    := tests/labs/08/speed.cu         measures it on a GPU, where there is one
include $(wildcard tests/labs/*/lab.mk)

LABS        := $(PHASES:%=lab%)
two_digits   = $(if $(filter-out 10 11 12,$(1)),0)$(1)
# $(1): the lab. What the learner's file is linked with: the checks under the sanitizers, everything
# else as it is in the demos, so that only two small files are slow.
lab_sources  = $(wildcard tests/labs/$(call two_digits,$(1))/*.c)
lab_rest     = $(filter-out $(patsubst %.c,build/release/%.o,$(LAB_$(1)_REPLACES)) \
                            $(patsubst %.cu,build/release/%.cu.o,$(LAB_$(1)_REPLACES)),$(2))
lab_objects  = $(call lab_rest,$(1),$(call objects,release,$(MODULES_11) tests/labs/serve.c) \
                 $(LAB_$(1)_EXTRA))
# Those that there are, and what their tests need: they run side by side and must find it built.
ALL_LABS    := $(foreach l,$(PHASES),$(if $(wildcard tests/labs/$(call two_digits,$(l))/lab.mk),$(l)))
lab_builds   = $(foreach l,$(1),build/labs/$(l)/grade $(call objects,$(call lab_kind,$(l)),$(call lab_sources,$(l))) \
                 $(LAB_$(l)_EXTRA)) \
               $(call objects,asan,tests/labs/program.c tests/labs/finding.c tests/labs/log.c)
lab_libs     = $(if $(LAB_$(1)_EXTRA),$(LIBS_emu)) $(LIBS)

# A learner's warnings are no errors. The emulation checks a kernel itself, without the sanitizers,
# and its fibers do not go with them: a lab of kernels is built without.
lab_kind                = $(if $(LAB_$(1)_EXTRA),release,asan)
LAB_COMPILE_.c          := $(CC) $(filter-out -Werror,$(CFLAGS))
LAB_COMPILE_.cu         := g++ $(filter-out -Werror,$(CXXFLAGS)) -Wno-unused-function -x c++
LAB_FLAGS_asan_.c       := -O2 $(SANITIZERS)
LAB_FLAGS_asan_.cu      := $(release_KERNEL_FLAGS)
LAB_FLAGS_release_.c    := $(release_FLAGS)
LAB_FLAGS_release_.cu   := $(release_KERNEL_FLAGS)

.PHONY: $(LABS) labs grade lab-program lab-demo lab-speed
$(LABS): lab%: deps
	@MAKE='$(MAKE) $(PARALLEL)' SOLUTION='$(SOLUTION)' RESTART='$(RESTART)' HINT='$(HINT)' tests/labs/lab $*
labs:
	@tests/labs/lab table
grade: deps
	@MAKE='$(MAKE) $(PARALLEL)' tests/labs/lab grade '$(LAB)' '$(DIR)'

define lab_rules
build/labs/$(1)/grade: $$(call objects,release,$$(addprefix tests/labs/,grade.c verdict.c process.c \
        explain.c finding.c log.c serve.c) $$(call lab_sources,$(1)) $$(MODULES_11))
	@mkdir -p $$(@D)
	$$(call say,cc )$$(CC) $$(release_FLAGS) $$^ -o $$@ $$(LIBS)
endef
$(foreach l,$(PHASES),$(eval $(call lab_rules,$(l))))

# LAB, LEARNER (source files) and OUT (a folder) say what is built; the recipes of tests/labs/lab.
# $(1): asan or release.
lab_compile = $(foreach f,$(LEARNER),$(if $(V),,@)$(LAB_COMPILE_$(suffix $(f))) \
                $(LAB_FLAGS_$(1)_$(suffix $(f))) -MMD -MF $(OUT)/$(1)/$(notdir $(f)).d -c '$(f)' \
                -o $(OUT)/$(1)/$(notdir $(f)).o$(newline))
lab_learner = $(foreach f,$(LEARNER),$(OUT)/$(1)/$(notdir $(f)).o)
define newline


endef
lab-program: $(call objects,$(call lab_kind,$(LAB)),tests/labs/program.c tests/labs/finding.c \
               tests/labs/log.c $(call lab_sources,$(LAB))) \
             $(call lab_objects,$(LAB))
	@mkdir -p $(OUT)/asan
	$(call lab_compile,asan)
	@$(CC) $($(call lab_kind,$(LAB))_FLAGS) $(call lab_learner,asan) $^ -o $(OUT)/program $(call lab_libs,$(LAB))
lab-demo: $(call lab_rest,$(LAB),$(call objects,release,$(call demo,$(LAB)) $(MODULES_$(LAB))) \
            $(LAB_$(LAB)_EXTRA))
	@mkdir -p $(OUT)/release
	$(call lab_compile,release)
	@$(CC) $(release_FLAGS) $(call lab_learner,release) $^ -o $(OUT)/demo $(call lab_libs,$(LAB))
# On a GPU: build/labs/N/speed with the project's kernels, OUT/speed with the learner's.
build/gpu/labs/%.o: tests/labs/%.cu build/settings/cuda-arch
	@mkdir -p $(@D)
	$(call say,nvcc)$(NVCC) $(NVCC_FLAGS) -MMD -MP -c $< -o $@
lab-speed: $(LAB_$(LAB)_SPEED:tests/labs/%.cu=build/gpu/labs/%.o) $(call gpu_objects,,11) \
           $(call objects,release,$(MODULES_11))
	@mkdir -p $(OUT)/gpu
	@$(CC) $(release_FLAGS) $^ -o build/labs/$(LAB)/speed $(LIBS_gpu) $(LIBS)
	$(foreach f,$(LEARNER),$(if $(V),,@)$(NVCC) $(filter-out -Werror=%,$(NVCC_FLAGS)) -c '$(f)' \
	    -o $(OUT)/gpu/$(notdir $(f)).o$(newline))
	@$(CC) $(release_FLAGS) $(filter-out $(LAB_$(LAB)_REPLACES:gpu/%.cu=build/gpu/%.o),$^) \
	    $(foreach f,$(LEARNER),$(OUT)/gpu/$(notdir $(f)).o) -o $(OUT)/speed $(LIBS_gpu) $(LIBS)
lab-settings:
	@echo 'replaces="$(LAB_$(LAB)_REPLACES)" demo="$(LAB_$(LAB)_DEMO)" refused="$(LAB_$(LAB)_REFUSED)" \
    inlines="$(LAB_$(LAB)_INLINES)" speed="$(and $(HAVE_GPU),$(LAB_$(LAB)_SPEED))"'
.PHONY: lab-settings
