/*
 * failpoints.c: lets a test say where and how the projector fails.  Only in test builds.
 *
 * The setting kudos_projector.failpoint is "place:action" or "place@n:action": the n-th time that the
 * process comes by (the first, without n) after the setting was made, the action happens, once.
 *
 * Places: the names that the sources give to failpoint(); "statement" and "statement_end", around every
 * statement that the executor runs; "allocation", every allocation of the core.
 */
#include "postgres.h"

#include <signal.h>

#include "executor/executor.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"

#include "failpoints.h"

#define PLACE_SIZE 64
/* what "wait" waits for: a test holds pg_advisory_lock(5657) */
#define WAIT_LOCK INT64CONST(5657)

typedef enum Action
{
	ACTION_ERROR,				/* an error that says nothing about a target */
	ACTION_RAISE,				/* an error as a trigger raises it */
	ACTION_OUT_OF_MEMORY,
	ACTION_CANCEL,				/* as by pg_cancel_backend(), noticed at the next chance */
	ACTION_TERMINATE,
	ACTION_WAIT,
	ACTION_CRASH,
} Action;

static const struct config_enum_entry actions[] = {
	{"error", ACTION_ERROR, false},
	{"raise", ACTION_RAISE, false},
	{"out_of_memory", ACTION_OUT_OF_MEMORY, false},
	{"cancel", ACTION_CANCEL, false},
	{"terminate", ACTION_TERMINATE, false},
	{"wait", ACTION_WAIT, false},
	{"crash", ACTION_CRASH, false},
	{NULL, 0, false}
};

typedef struct Failpoint
{
	char		place[PLACE_SIZE];	/* empty: none */
	int64		nth;
	Action		action;
} Failpoint;

static char *failpoint_setting;
static char *open_batches_setting;
static char *passed_setting;
static Failpoint armed;
static int64 passed;

int64		kudos_open_batches = 0;

static ExecutorStart_hook_type previous_start;
static ExecutorEnd_hook_type previous_end;

static bool
parse_failpoint(const char *text, Failpoint *parsed)
{
	const char *colon = strchr(text, ':');
	const char *at = strchr(text, '@');
	const char *place_end;

	memset(parsed, 0, sizeof(*parsed));
	if (text[0] == '\0')
		return true;
	if (colon == NULL)
		return false;
	place_end = at != NULL && at < colon ? at : colon;
	if (place_end == text || place_end - text >= PLACE_SIZE)
		return false;
	memcpy(parsed->place, text, place_end - text);
	parsed->nth = place_end == at ? strtoll(at + 1, NULL, 10) : 1;
	for (const struct config_enum_entry *entry = actions; entry->name != NULL; entry++)
	{
		if (strcmp(entry->name, colon + 1) == 0)
		{
			parsed->action = (Action) entry->val;
			return parsed->nth > 0;
		}
	}
	return false;
}

static bool
check_failpoint(char **newval, void **extra, GucSource source)
{
	Failpoint	parsed;

	return parse_failpoint(*newval, &parsed);
}

static void
assign_failpoint(const char *newval, void *extra)
{
	parse_failpoint(newval, &armed);
	passed = 0;
}

static const char *
show_open_batches(void)
{
	static char text[32];

	snprintf(text, sizeof(text), INT64_FORMAT, kudos_open_batches);
	return text;
}

static const char *
show_passed(void)
{
	static char text[32];

	snprintf(text, sizeof(text), INT64_FORMAT, passed);
	return text;
}

static bool
comes_due(const char *place)
{
	return strcmp(armed.place, place) == 0 && ++passed == armed.nth;
}

static void
wait_for_test(void)
{
	int			level = NewGUCNestLevel();

	set_config_option("lock_timeout", "0", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	DirectFunctionCall1(pg_advisory_lock_int8, Int64GetDatum(WAIT_LOCK));
	DirectFunctionCall1(pg_advisory_unlock_int8, Int64GetDatum(WAIT_LOCK));
	AtEOXact_GUC(true, level);
}

void
kudos_failpoint(const char *place)
{
	if (!comes_due(place))
		return;
	switch (armed.action)
	{
		case ACTION_ERROR:
			ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("failpoint \"%s\"", place)));
			break;
		case ACTION_RAISE:
			ereport(ERROR, (errcode(ERRCODE_RAISE_EXCEPTION), errmsg("failpoint \"%s\"", place)));
			break;
		case ACTION_OUT_OF_MEMORY:
			ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("failpoint \"%s\"", place)));
			break;
		case ACTION_CANCEL:
			QueryCancelPending = true;
			InterruptPending = true;
			break;
		case ACTION_TERMINATE:
			ProcDiePending = true;
			InterruptPending = true;
			break;
		case ACTION_WAIT:
			wait_for_test();
			break;
		case ACTION_CRASH:
			kill(MyProcPid, SIGKILL);
			break;
	}
}

/* No error may be raised here: the caller is core, and throws. */
bool
kudos_allocation_fails(void)
{
	return comes_due("allocation");
}

static void
start_statement(QueryDesc *queryDesc, int eflags)
{
	kudos_failpoint("statement");
	if (previous_start)
		previous_start(queryDesc, eflags);
	else
		standard_ExecutorStart(queryDesc, eflags);
}

static void
end_statement(QueryDesc *queryDesc)
{
	if (previous_end)
		previous_end(queryDesc);
	else
		standard_ExecutorEnd(queryDesc);
	kudos_failpoint("statement_end");
}

void
kudos_define_failpoints(void)
{
	DefineCustomStringVariable("kudos_projector.failpoint", "Where and how the projector fails, once.", NULL,
							   &failpoint_setting, "", PGC_SUSET, 0,
							   check_failpoint, assign_failpoint, NULL);
	DefineCustomStringVariable("kudos_projector.open_batches", "Batches of the core that are not closed.", NULL,
							   &open_batches_setting, "", PGC_INTERNAL, 0,
							   NULL, NULL, show_open_batches);
	DefineCustomStringVariable("kudos_projector.passed", "How often this process came by the place.", NULL,
							   &passed_setting, "", PGC_INTERNAL, 0,
							   NULL, NULL, show_passed);
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = start_statement;
	previous_end = ExecutorEnd_hook;
	ExecutorEnd_hook = end_statement;
}
