/*
 * kudos_projector.c: the shim between the server and the projector.
 *
 * Owns the module magic, the settings, the hooks, the registration of the launcher and the entry
 * points; no rule of the contract lives here.  Only symbols of this file leave the library.
 */
#include "postgres.h"

#include <limits.h>

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/guc.h"

#include "server/entry.h"
#include "settings.h"
#ifdef KUDOS_FAILPOINTS
#include "failpoints/failpoints.h"
#endif

/* 15 does not mark what a module exports (PGDLLEXPORT is empty), and we hide the rest */
#pragma GCC visibility push(default)
PG_MODULE_MAGIC;
extern void _PG_init(void);
extern void kudos_launcher_main(Datum main_arg);
extern void kudos_worker_main(Datum main_arg);
#pragma GCC visibility pop

#define BATCH_SIZE_DEFAULT 1000
#define INTERVAL_DEFAULT_MS 3000
#define INTERVAL_MIN_MS 10
#define INTERVAL_MAX_MS (60 * 60 * 1000)
#define CATCHUP_CYCLES_DEFAULT 10
#define CATCHUP_CYCLES_MAX 10000
#define LOCK_TIMEOUT_DEFAULT_MS 1000
#define LOCK_TIMEOUT_MIN_MS 1
#define LOCK_TIMEOUT_MAX_MS (5 * 60 * 1000)
#define TRUST_AGE_DEFAULT_S (7 * 24 * 60 * 60)
#define SUSPICIONS_DEFAULT 5
#define LAUNCHER_RESTART_S 5

char	   *kudos_databases;
char	   *kudos_schema;
bool		kudos_enabled;
int			kudos_batch_size;
int			kudos_interval;
int			kudos_max_catchup_cycles;
int			kudos_lock_timeout;
bool		kudos_wake_on_commit;
char	   *kudos_trust_threshold;
int			kudos_trust_minimum_age;
int			kudos_suspicion_threshold;

static shmem_request_hook_type previous_shmem_request_hook;
static shmem_startup_hook_type previous_shmem_startup_hook;

static bool
check_databases(char **newval, void **extra, GucSource source)
{
	char	   *problem;

	if (kudos_databases_valid(*newval, &problem))
		return true;
	GUC_check_errdetail("%s", problem);
	return false;
}

static bool
check_trust_threshold(char **newval, void **extra, GucSource source)
{
	if (kudos_threshold_valid(*newval))
		return true;
	GUC_check_errdetail("The value is neither empty nor a number of kudos.");
	return false;
}

static void
define_settings(void)
{
	DefineCustomStringVariable("kudos_projector.databases",
							   "Databases that get a projector of their own.",
							   "Comma-separated names, quoted as identifiers where needed.",
							   &kudos_databases, "",
							   PGC_SIGHUP, GUC_LIST_INPUT,
							   check_databases, NULL, NULL);
	DefineCustomStringVariable("kudos_projector.schema",
							   "Schema of the Horde's tables.",
							   NULL,
							   &kudos_schema, "public",
							   PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("kudos_projector.enabled",
							 "Runs the projectors; off stops them and frees their databases.",
							 NULL,
							 &kudos_enabled, true,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("kudos_projector.batch_size",
							"Rows of each kind that one cycle claims.",
							NULL,
							&kudos_batch_size, BATCH_SIZE_DEFAULT,
							KUDOS_BATCH_SIZE_MIN, KUDOS_BATCH_SIZE_MAX,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("kudos_projector.interval",
							"Time between two ticks.",
							NULL,
							&kudos_interval, INTERVAL_DEFAULT_MS,
							INTERVAL_MIN_MS, INTERVAL_MAX_MS,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("kudos_projector.max_catchup_cycles",
							"Cycles that one tick runs while claims come back full.",
							NULL,
							&kudos_max_catchup_cycles, CATCHUP_CYCLES_DEFAULT,
							1, CATCHUP_CYCLES_MAX,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("kudos_projector.lock_timeout",
							"Time that a cycle waits for one lock of a target.",
							"What is still locked then is left for the next tick.",
							&kudos_lock_timeout, LOCK_TIMEOUT_DEFAULT_MS,
							LOCK_TIMEOUT_MIN_MS, LOCK_TIMEOUT_MAX_MS,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomStringVariable("kudos_projector.trust_threshold",
							   "Kudos of escrow above which a user is promoted to trusted.",
							   "Empty: nobody is promoted.",
							   &kudos_trust_threshold, "",
							   PGC_SUSET, 0, check_trust_threshold, NULL, NULL);
	DefineCustomIntVariable("kudos_projector.trust_minimum_age",
							"Age that an account must have to be promoted.",
							NULL,
							&kudos_trust_minimum_age, TRUST_AGE_DEFAULT_S,
							0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("kudos_projector.suspicion_threshold",
							"Suspicions from which on a user is not promoted.",
							NULL,
							&kudos_suspicion_threshold, SUSPICIONS_DEFAULT,
							0, INT_MAX,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("kudos_projector.wake_on_commit",
							 "Wakes the worker when a transaction that posted commits.",
							 "Off: postings wait for the next tick.",
							 &kudos_wake_on_commit, false,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
#ifdef KUDOS_FAILPOINTS
	kudos_define_failpoints();
#endif
	MarkGUCPrefixReserved("kudos_projector");
}

static void
request_shared_memory(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	RequestAddinShmemSpace(kudos_shared_state_size());
	RequestNamedLWLockTranche("kudos_projector", 1);
}

static void
start_shared_memory(void)
{
	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();
	kudos_shared_state_startup();
}

static void
register_launcher(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	/* not on a standby, and started by itself at promotion */
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = LAUNCHER_RESTART_S;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "kudos_projector");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "kudos_launcher_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "kudos_projector launcher");
	snprintf(worker.bgw_type, BGW_MAXLEN, "kudos_projector launcher");
	RegisterBackgroundWorker(&worker);
}

void
_PG_init(void)
{
	define_settings();
	kudos_install_planner_hook();
	kudos_install_commit_hooks();

	/* loaded late, everything but the workers works */
	if (!process_shared_preload_libraries_in_progress)
	{
		ereport(WARNING,
				(errmsg("kudos_projector is not preloaded, so no worker folds"),
				 errhint("Add it to shared_preload_libraries and restart the server; until then, fold with kudos_fold_now().")));
		return;
	}

	kudos_install_utility_hook();
	previous_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shared_memory;
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = start_shared_memory;

	/* pg_upgrade must not have its half-built database folded */
	if (!IsBinaryUpgrade)
		register_launcher();
}

void
kudos_launcher_main(Datum main_arg)
{
	kudos_entry_launcher();
}

void
kudos_worker_main(Datum main_arg)
{
	kudos_entry_worker(DatumGetInt32(main_arg));
}

#pragma GCC visibility push(default)

#define SQL_FUNCTION(name) \
	PG_FUNCTION_INFO_V1(kudos_##name); \
	Datum \
	kudos_##name(PG_FUNCTION_ARGS) \
	{ \
		return kudos_entry_##name(fcinfo); \
	}

SQL_FUNCTION(fold_now)
SQL_FUNCTION(catch_up)
SQL_FUNCTION(health)
SQL_FUNCTION(stats)
SQL_FUNCTION(mode)
SQL_FUNCTION(pin_mode)
SQL_FUNCTION(set_mode)
SQL_FUNCTION(floor)
SQL_FUNCTION(available)
SQL_FUNCTION(effective)
SQL_FUNCTION(reserve)
SQL_FUNCTION(release)
SQL_FUNCTION(transfer)
SQL_FUNCTION(post)
SQL_FUNCTION(post_stat)
SQL_FUNCTION(wait_applied)
SQL_FUNCTION(quarantine)
SQL_FUNCTION(requeue)
SQL_FUNCTION(accept_quarantined)
SQL_FUNCTION(install_ledger)
SQL_FUNCTION(check_schema)
SQL_FUNCTION(snapshot)
SQL_FUNCTION(reconcile)
SQL_FUNCTION(repair)

#pragma GCC visibility pop
