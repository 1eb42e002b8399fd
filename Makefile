# kudos_projector: build, install, test.
#
#   make            build            make check      every test, from nothing (installs packages as root)
#   make install    install          make demo       a private server that folds while you watch
#   make bench      benchmarks       make installcheck   SQL tests against a running server
#   make torture    kills and restarts under load for up to half an hour, everything checked after each round;
#                   bounds and choices: TORTURE_KILLS=500 TORTURE_SECONDS=1800 TORTURE_ROUND=25 TORTURE_SEED=7

EXTENSION = kudos_projector
MODULE_big = kudos_projector
DATA = sql/kudos_projector--0.1.sql

CORE = $(patsubst %.cpp,%.o,$(wildcard src/core/*.cpp))
SERVER = $(patsubst %.cpp,%.o,$(wildcard src/server/*.cpp))
OBJS = src/kudos_projector.o $(CORE) $(SERVER)

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

ifneq ($(filter check demo bench torture,$(MAKECMDGOALS))$(if $(wildcard $(PGXS)),,bare),)

# These start from nothing: what is missing is fetched first. PGXS has no part in them (its own
# "check" only says that it is not supported).
check: installed
	@test/run

demo: installed
	@tools/demo

bench: installed
	@test/bench/run

torture: installed
	@test/torture/run

all install: packages
	$(MAKE) --no-print-directory $@ PG_CONFIG=$(PG_CONFIG)

installed: packages
	@echo "building and installing kudos_projector"
	@$(MAKE) --no-print-directory -s -j2 all PG_CONFIG=$(PG_CONFIG)
	@$(MAKE) --no-print-directory -s install PG_CONFIG=$(PG_CONFIG)

packages:
	@tools/install-packages

.PHONY: check demo bench torture all install installed packages

else

REGRESS = $(patsubst sql/%.sql,%,$(filter-out sql/kudos_projector--%,$(wildcard sql/*.sql)))

# JIT could inline nothing of ours that matters, and a machine without clang must build.
override with_llvm = no

# Debian builds its server with gcc and records flags that clang does not know.
WARNINGS = -Wall -Wextra -Werror -Wno-unknown-warning-option
PG_CFLAGS = $(WARNINGS) -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers -fvisibility=hidden
PG_CXXFLAGS = -std=c++20 $(WARNINGS) -fvisibility=hidden -fvisibility-inlines-hidden
SHLIB_LINK = -lstdc++
EXTRA_CLEAN = test/unit/build $(DATA)

include $(PGXS)

# The server's headers are not ours to be warned about.
override CPPFLAGS := $(patsubst -I$(includedir_server),-isystem $(includedir_server),$(CPPFLAGS))
# 15's headers say "register", which C++17 dropped; server code throws nothing, so nothing is unwound.
$(SERVER): override CXXFLAGS += -Wno-register -Wno-volatile -Wno-deprecated-volatile -Wno-unused-parameter \
	-fno-exceptions -fno-rtti
$(CORE): override CPPFLAGS := -Isrc

# One file an area; together they are the script of the version.
all: $(DATA)
$(DATA): $(sort $(wildcard src/sql/*.sql))
	cat $^ >$@

# Headers are few: any change rebuilds all.
$(OBJS): $(wildcard src/*.h src/core/*.hpp src/server/*.hpp src/server/*.h)

endif
