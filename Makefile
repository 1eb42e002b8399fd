# kudos_projector: build, install, test.
#
#   make            build            make check      every test, from nothing (installs packages as root)
#   make install    install          make demo       a private server that folds while you watch
#   make bench      benchmarks       make installcheck   SQL tests against a running server
#   make fuzz       libFuzzer on src/core, for FUZZ_SECONDS=60; needs clang
#   make torture    kills and restarts under load for up to half an hour, everything checked after each round;
#                   bounds and choices: TORTURE_KILLS=500 TORTURE_SECONDS=1800 TORTURE_ROUND=25 TORTURE_SEED=7

EXTENSION = kudos_projector
MODULE_big = kudos_projector
DATA = sql/kudos_projector--0.1.sql

CORE = $(patsubst %.cpp,%.o,$(wildcard src/core/*.cpp))
SERVER = $(patsubst %.cpp,%.o,$(wildcard src/server/*.cpp))
OBJS = src/kudos_projector.o $(CORE) $(SERVER)

# A test build, which can be told to fail (src/failpoints): make FAILPOINTS=1, from clean.
ifdef FAILPOINTS
PG_CPPFLAGS += -DKUDOS_FAILPOINTS
OBJS += $(patsubst %,src/failpoints/%.o,failpoints allocation)
WRAP_NEW = -Wl,--wrap=_Znwm -Wl,--wrap=_ZnwmRKSt9nothrow_t
endif

ifeq ($(PG_CONFIG),)
override PG_CONFIG = pg_config
endif
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

ifneq ($(filter check demo bench fuzz torture,$(MAKECMDGOALS))$(if $(wildcard $(PGXS)),,bare),)

# These start from nothing: what is missing is fetched first. PGXS has no part in them (its own
# "check" only says that it is not supported).
check: installed
	@test/run

demo: installed
	@tools/demo

bench: installed
	@test/bench/run

FUZZ_SECONDS ?= 60
fuzz:
	@command -v clang++ >/dev/null || { echo "make fuzz needs clang: apt-get install clang"; exit 1; }
	@$(MAKE) --no-print-directory -C test/fuzz FUZZ_SECONDS=$(FUZZ_SECONDS)

torture: installed
	@test/torture/run

all install: packages
	@$(PG_CONFIG) --pgxs >/dev/null # or this would begin anew for ever
	$(MAKE) --no-print-directory $@ PG_CONFIG=$(PG_CONFIG)

installed: packages
	@echo "building and installing kudos_projector"
	@$(MAKE) --no-print-directory -s -j2 all PG_CONFIG=$(PG_CONFIG)
	@$(MAKE) --no-print-directory -s install PG_CONFIG=$(PG_CONFIG)

packages:
	@tools/install-packages

.PHONY: check demo bench fuzz torture all install installed packages

else

REGRESS = $(patsubst sql/%.sql,%,$(filter-out sql/kudos_projector--%,$(wildcard sql/*.sql)))

# JIT could inline nothing of ours that matters, and a machine without clang must build.
override with_llvm = no

# Debian builds its server with gcc and records flags that clang does not know.
WARNINGS = -Wall -Wextra -Werror -Wno-unknown-warning-option
PG_CFLAGS = $(WARNINGS) -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers -fvisibility=hidden
PG_CXXFLAGS = -std=c++20 $(WARNINGS) -fvisibility=hidden -fvisibility-inlines-hidden
SHLIB_LINK = -lstdc++ $(WRAP_NEW)
EXTRA_CLEAN = test/unit/build $(DATA)

include $(PGXS)

# The server's headers are not ours to be warned about.
override CPPFLAGS := $(patsubst -I$(includedir_server),-isystem $(includedir_server),$(CPPFLAGS))
# 15's headers say "register", which C++17 dropped; server code throws nothing, so nothing is unwound.
$(SERVER): override CXXFLAGS += -Wno-register -Wno-volatile -Wno-deprecated-volatile -Wno-unused-parameter \
	-fno-exceptions -fno-rtti
$(CORE) src/failpoints/allocation.o: override CPPFLAGS := -Isrc

# One file an area; together they are the script of the version.
all: $(DATA)
$(DATA): $(sort $(wildcard src/sql/*.sql))
	cat $^ >$@

# Headers are few: any change rebuilds all.
$(OBJS): $(wildcard src/*.h src/core/*.hpp src/server/*.hpp src/server/*.h src/failpoints/*.h)

endif
