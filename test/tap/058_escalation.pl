# The owner of the ledger tries to become more by what runs when others fold: triggers, defaults, generated
# columns, index and CHECK functions, domains, casts, rules, policies. Everything must run as him, wherever
# and whoever folds, and leave nothing behind that somebody else runs later.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('escalation',
	{
		'kudos_projector.databases' => 'horde',
		'kudos_projector.enabled' => 'off',
		'kudos_projector.trust_threshold' => '10',
		'kudos_projector.lock_timeout' => '10s',
	});
$node->safe_psql('postgres', 'CREATE DATABASE horde');
load_fixture($node, 'horde');

# --- The attacker: role mallory, owner of all of the Horde's tables and of the schema. eve may add
# triggers to one of them. Whatever of theirs runs says who it is, and what it could do, in the log.

$node->safe_psql('horde', q{
	CREATE ROLE mallory LOGIN;
	CREATE ROLE eve LOGIN;
	CREATE ROLE watcher LOGIN IN ROLE pg_monitor;
	CREATE ROLE application LOGIN;
	ALTER SCHEMA public OWNER TO mallory;
	GRANT CREATE ON SCHEMA public TO eve;
	ALTER TYPE userrecordtypes OWNER TO mallory;
	CREATE TABLE kudos_transfers (id serial PRIMARY KEY, source_id int NOT NULL, dest_id int NOT NULL, kudos bigint NOT NULL, created timestamp NOT NULL);
	DO $$ DECLARE t regclass; BEGIN
	  FOR t IN SELECT c.oid FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname !~ '^t_'
	    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') LOOP
	    EXECUTE format('ALTER TABLE %s OWNER TO mallory', t);
	  END LOOP;
	END $$;
	GRANT TRIGGER ON teams TO eve;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA public TO application;
});

$node->safe_psql('horde', q{
	CREATE SCHEMA evil AUTHORIZATION mallory;
	SET ROLE mallory;
	-- Of these the first are beyond his rights, the others only in the sessions of others.
	CREATE FUNCTION evil.grab(how text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
	DECLARE command text; got text := '';
	BEGIN
	  FOREACH command IN ARRAY ARRAY['SET ROLE postgres', 'SET SESSION AUTHORIZATION postgres', 'ALTER ROLE mallory SUPERUSER',
	      'GRANT pg_execute_server_program TO mallory', 'COPY (SELECT 1) TO PROGRAM ''true''', 'SET kudos_projector.schema = evil',
	      'CREATE EVENT TRIGGER mine ON ddl_command_end EXECUTE FUNCTION evil.none()', 'TABLE pg_authid',
	      'DELETE FROM public.kudos_snapshots', 'ALTER EXTENSION kudos_projector SET SCHEMA evil'] LOOP
	    BEGIN
	      EXECUTE command;
	      got := got || command || '; ';
	    EXCEPTION WHEN OTHERS THEN NULL;
	    END;
	  END LOOP;
	  IF session_user <> 'mallory' THEN
	    FOREACH command IN ARRAY ARRAY['RESET ROLE', 'RESET SESSION AUTHORIZATION', 'CREATE TEMP TABLE users (id int)',
	        'CREATE TEMP VIEW kudos AS SELECT evil.grab(''view'')', 'CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (evil.no(''temp domain''))',
	        'PREPARE mine AS SELECT evil.grab(''prepared'')', 'DECLARE mine CURSOR WITH HOLD FOR SELECT evil.grab(''cursor'')', 'LISTEN mine'] LOOP
	      BEGIN
	        EXECUTE command;
	        got := got || command || '; ';
	      EXCEPTION WHEN OTHERS THEN NULL;
	      END;
	    END LOOP;
	  END IF;
	  -- What can be set must not last: the next statement of a superuser would find evil.now().
	  IF session_user <> 'mallory' OR current_setting('application_name') = 'kudos_projector' THEN
	    PERFORM set_config('search_path', 'evil, pg_catalog', false), set_config('enable_hashjoin', 'off', false),
	      set_config('statement_timeout', '12345', false), set_config('evil.mark', 'was here', false);
	  END IF;
	  RAISE LOG 'loot|%|%|%|%|', how, current_user, session_user, got;
	END $$;
	CREATE FUNCTION evil.no(how text) RETURNS bool LANGUAGE plpgsql VOLATILE AS $$ BEGIN PERFORM evil.grab(how); RETURN true; END $$;
	CREATE FUNCTION evil.fixed(how text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM evil.grab(how); RETURN true; END $$;
	CREATE FUNCTION evil.fixed(how text, value bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM evil.grab(how); RETURN value; END $$;
	CREATE FUNCTION evil.trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.grab(TG_WHEN || ' ' || TG_OP || ' ' || TG_TABLE_NAME); RETURN NEW; END $$;
	CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.grab('now()'); RETURN pg_catalog.now(); END $$;
	CREATE FUNCTION evil.lower(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.grab('lower()'); RETURN $1; END $$;
	CREATE FUNCTION evil.same(bigint, bigint) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.grab('operator'); RETURN $1 OPERATOR(pg_catalog.=) $2; END $$;
	CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.same);
	CREATE TABLE evil.kudos_ledger (LIKE public.kudos_ledger);
	CREATE TABLE evil.users (LIKE public.users);
	-- A cast from text to his own type serves any row of it.
	CREATE FUNCTION evil.label(text) RETURNS public.userrecordtypes LANGUAGE plpgsql AS $$
	DECLARE label public.userrecordtypes;
	BEGIN PERFORM evil.grab('cast'); EXECUTE format('SELECT %L::public.userrecordtypes', $1) INTO label; RETURN label; END $$;
	CREATE CAST (text AS public.userrecordtypes) WITH FUNCTION evil.label(text);
	CREATE DOMAIN evil.flag AS boolean CHECK (evil.no('domain'));
	ALTER TABLE public.user_roles ALTER value DROP DEFAULT, ALTER value TYPE evil.flag;
	ALTER TABLE public.user_stats ADD note bool DEFAULT evil.no('default');
	ALTER TABLE public.worker_stats ADD made bigint GENERATED ALWAYS AS (evil.fixed('generated column', value)) STORED;
	ALTER TABLE public.kudos_ledger ADD CHECK (evil.no('check'));
	CREATE INDEX ON public.user_stats (evil.fixed('index expression', value));
	CREATE INDEX ON public.kudos_ledger (id) WHERE evil.fixed('index condition') AND NOT applied;
	CREATE INDEX ON public.users (kudos) WHERE evil.fixed('index condition of users');
	CREATE RULE evil AS ON UPDATE TO public.workers DO ALSO SELECT evil.grab('rule');
	ALTER TABLE public.teams ENABLE ROW LEVEL SECURITY;
	CREATE POLICY evil ON public.teams USING (evil.no('policy'));
	DO $$ DECLARE t text; BEGIN
	  FOREACH t IN ARRAY '{users,user_stats,worker_stats,user_records,workers,kudos_ledger,kudos_stat_events,kudos_reservations,user_roles,
	      kudos_ledger_control,kudos_ledger_applier_state,kudos_balance_snapshots,kudos_transfers}'::text[] LOOP
	    EXECUTE format('CREATE TRIGGER a BEFORE INSERT OR UPDATE ON public.%I FOR EACH ROW EXECUTE FUNCTION evil.trigger()', t);
	    EXECUTE format('CREATE TRIGGER b AFTER INSERT OR UPDATE ON public.%I FOR EACH ROW EXECUTE FUNCTION evil.trigger()', t);
	  END LOOP;
	END $$;
	RESET ROLE;
	GRANT USAGE ON SCHEMA evil TO eve;
	SET ROLE eve;
	CREATE TRIGGER a BEFORE UPDATE ON public.teams FOR EACH ROW EXECUTE FUNCTION evil.trigger();
	RESET ROLE;
	ALTER DATABASE horde SET search_path = evil, public, pg_catalog;
});
# Of all sessions but those of the worker: what the test itself asks must not meet his operators.
$ENV{PGOPTIONS} = '-c search_path=public';

my $from = -s $node->logfile;

# What ran of the attackers since the last look: how, and as whom, by name of the session's user.
sub loot
{
	my (%seen, @gained);
	for my $line (log_lines($node, qr/loot\|/, $from))
	{
		my ($how, $who, $session, $got) = $line =~ /loot\|(.*)\|(.*)\|(.*)\|(.*)\|/;
		$seen{$how} = 1;
		push @gained, "$how as $who in a session of $session: $got" if $who ne 'mallory' || $got ne '';
	}
	$from = -s $node->logfile;
	return ([ sort keys %seen ], \@gained);
}

sub gains_nothing
{
	my ($name, @vehicles) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($seen, $gained) = loot();
	my %seen = map { $_ => 1 } @$seen;
	is_deeply([ grep { !$seen{$_} } @vehicles ], [], "$name: all that was planted ran");
	is_deeply($gained, [], "$name: as its owner, and gained nothing");
	is($node->safe_psql('postgres', q{SELECT string_agg(rolname, ' ' ORDER BY 1) FROM pg_roles WHERE rolsuper}), 'postgres', "$name: no superuser was made");
}

# Something for every target, hold, promotion and drain. As the attacker, who owns the tables anyway.
my $work = q{
	SELECT t_post(1, 5), t_post(2, -3, d => '{"reservation_id": "held"}'), t_post(4, -29), t_post(5, 50, true), t_ustat(1, 'accumulated', 2.4),
	  t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 3, '00000000-0000-0000-0000-0000000000a1'), t_rec(2, 'USAGE', 'pixels', 4),
	  t_contrib('00000000-0000-0000-0000-0000000000f2', 'fulfilments', 1), t_ustat(99, 'accumulated', 1);
	DELETE FROM user_roles; DELETE FROM user_stats; DELETE FROM worker_stats; DELETE FROM user_records;
	INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('held', 2, 9, 9)
	  ON CONFLICT (business_id) DO UPDATE SET released_at = NULL, remaining_amount = 9;
	UPDATE workers SET paused = true;
};
# A superuser who as much as reads these tables runs what their owner planted: the test reads them as him.
sub as { my ($role, $statements) = @_; return $node->safe_psql('horde', $statements, extra_params => [ '-U', $role ]); }
sub as_superuser { my ($statements) = @_; $node->safe_psql('horde', $statements); return; }
sub fill { as('mallory', $work); $from = -s $node->logfile; return; }

my @fold_vehicles = (
	'AFTER INSERT kudos_ledger', 'AFTER INSERT user_records', 'AFTER INSERT user_roles', 'AFTER INSERT user_stats', 'AFTER INSERT worker_stats',
	'AFTER UPDATE kudos_ledger', 'AFTER UPDATE kudos_ledger_applier_state', 'AFTER UPDATE kudos_reservations', 'AFTER UPDATE kudos_stat_events',
	'AFTER UPDATE users', 'AFTER UPDATE workers', 'BEFORE INSERT kudos_ledger', 'BEFORE UPDATE teams', 'BEFORE UPDATE users', 'cast', 'check', 'default', 'domain',
	'generated column', 'index expression', 'rule');

# --- A superuser folds, switches, snapshots, repairs, looks; then his session must be as it was.

sub session_of
{
	my (@calls) = @_;
	my $state = q{SELECT name || '=' || setting AS setting FROM pg_settings};
	return $node->safe_psql('horde', join "\n", 'DO $$BEGIN END$$;', 'SELECT count(kudos_mode());', '\o /dev/null',
		'SET search_path = evil, public, pg_catalog;', "CREATE TEMP TABLE before AS $state;", (map { "$_;" } @calls), '\o',
		"SELECT 'changed: ' || string_agg(setting, ', ') FROM ($state EXCEPT TABLE before) changed;", 'SELECT current_user = session_user, current_user;',
		'SELECT pg_catalog.count(*) FROM pg_prepared_statements;', 'SELECT pg_catalog.count(*) FROM pg_cursors WHERE name <> \'\';', 'SELECT pg_catalog.count(*) FROM pg_listening_channels();',
		"SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace = pg_my_temp_schema();", "SELECT current_setting('evil.mark', true);",
		"SELECT 'x'::text;");
}
my $untouched = "1\n\nt|postgres\n0\n0\n0\nbefore\n\nx";

fill();
is(session_of('SELECT kudos_fold_now()'), $untouched, 'a superuser who folds: his session is as it was');
gains_nothing('kudos_fold_now() by a superuser', @fold_vehicles);

fill();
is(session_of('CALL kudos_catch_up()'), $untouched, 'a superuser who catches up: his session is as it was');
gains_nothing('kudos_catch_up() by a superuser', @fold_vehicles);

fill();
is(session_of(q{SELECT kudos_set_mode('shadow')}, q{SELECT kudos_set_mode('ledger')}), $untouched, 'a superuser who switches the mode');
gains_nothing('kudos_set_mode() by a superuser', 'AFTER UPDATE kudos_ledger_control', 'BEFORE UPDATE users', 'rule');

my $snapshot = '(SELECT snapshot_id FROM kudos_snapshots ORDER BY created DESC LIMIT 1)';
is(session_of('SELECT kudos_snapshot()'), $untouched, 'a superuser who takes a snapshot');
gains_nothing('kudos_snapshot() by a superuser', 'AFTER INSERT kudos_balance_snapshots');
as('mallory', 'UPDATE public.users SET kudos = kudos + 1 WHERE id = 1');
is(session_of("SELECT kudos_reconcile($snapshot)", "SELECT kudos_repair($snapshot)", 'SELECT kudos_fold_now()'), $untouched, 'a superuser who reconciles and repairs');
gains_nothing('kudos_repair() by a superuser', 'BEFORE INSERT kudos_ledger', 'AFTER UPDATE users', 'check');

my @small = (
	q{SELECT kudos_post(1, 1, 'AWARD')}, q{SELECT kudos_post_stat('GENERATION', 1, 'kudos', 1, stat_action => 'accumulated', record => 'user_kudos')},
	q{SELECT kudos_reserve(1, 'small', 1)}, q{SELECT kudos_release('small')}, q{SELECT kudos_transfer(1, 2, 1, gen_random_uuid()::text)},
	q{SELECT kudos_available(1), kudos_effective(1), kudos_floor(1), kudos_pin_mode()}, q{SELECT kudos_wait_applied(gen_random_uuid(), '0')},
	q{SELECT kudos_accept_quarantined(event_id, 'so be it') FROM kudos_quarantine_rows() LIMIT 1}, q{SELECT * FROM kudos_health()},
	q{SELECT * FROM kudos_check_schema()});
my @small_vehicles = ('AFTER INSERT kudos_ledger', 'AFTER INSERT kudos_reservations', 'AFTER INSERT kudos_transfers', 'BEFORE INSERT kudos_stat_events',
	'BEFORE UPDATE kudos_reservations', 'check', 'index condition', 'index condition of users');
is(session_of(@small), $untouched, 'a superuser who calls the others');
gains_nothing('the other functions by a superuser', @small_vehicles);

# --- What brings the tables to form changes them as their owners

as('mallory', q{ALTER TABLE public.kudos_ledger DROP job_id; DROP INDEX public.ix_kudos_stat_events_event_id; DROP TABLE public.kudos_balance_snapshots});
is(session_of('SELECT * FROM kudos_install_ledger(true)', 'SELECT * FROM kudos_install_ledger()'), $untouched, 'a superuser who installs what is missing');
gains_nothing('kudos_install_ledger() by a superuser', 'index condition');
is($node->safe_psql('horde', q{SELECT string_agg(DISTINCT pg_get_userbyid(relowner), ' ') FROM pg_class WHERE relnamespace = 'public'::regnamespace
	AND relname ~ 'kudos_(ledger|stat_events|balance_snapshots)'}), 'mallory', 'what it made belongs to the owner of the ledger');

# --- Members of pg_monitor look; an application posts and folds

fill();
as('watcher', q{SELECT * FROM kudos_health(); SELECT * FROM kudos_check_schema(); SELECT kudos_mode(); TABLE kudos_quarantine; TABLE kudos_projector_stats});
gains_nothing('what pg_monitor reads', 'index condition');
as('application', join('; ', @small, 'SELECT kudos_fold_now()', 'CALL kudos_catch_up()', 'SELECT kudos_snapshot()'));
gains_nothing('an application that posts and folds', @small_vehicles, @fold_vehicles);

# The other way round: what a caller planted in his session must not run as the owner of the ledger.
as('application', q{
	CREATE TEMP TABLE users (id int, kudos int); CREATE TEMP TABLE kudos_ledger (id int); CREATE TEMP TABLE kudos_remainder_users (id int);
	CREATE DOMAIN pg_temp.uuid AS text; CREATE DOMAIN pg_temp.int8 AS text;
	CREATE FUNCTION pg_temp.unnest(anyarray) RETURNS SETOF text LANGUAGE plpgsql AS $$ BEGIN RAISE LOG 'loot|temp|%|%|ran|', current_user, session_user; RETURN; END $$;
	CREATE FUNCTION pg_temp.greatest(timestamp, timestamp) RETURNS timestamp LANGUAGE plpgsql AS $$ BEGIN RAISE LOG 'loot|temp|%|%|ran|', current_user, session_user; RETURN $1; END $$;
	SET search_path = pg_temp, public, pg_catalog;
	SELECT public.kudos_post(1, 5, 'AWARD'); SELECT public.kudos_reserve(1, 'temporary', 1); SELECT public.kudos_fold_now();});
gains_nothing('a caller with temporary objects', 'AFTER UPDATE users');
is(as('mallory', 'SELECT count(*) FROM kudos_ledger WHERE NOT applied'), '0', 'and the real tables were folded');

# --- The worker: as mallory, and, where he may not log in, as superuser in a restricted operation

# Counted in shared memory, so that the look itself runs nothing.
sub folded_rows { return $node->safe_psql('horde', q{SELECT coalesce(sum(currency_rows), 0) FROM kudos_projector_stats}); }

for my $login ('LOGIN', 'NOLOGIN')
{
	fill();
	my $folded = folded_rows();
	$node->safe_psql('postgres', "ALTER ROLE mallory $login");
	set_config($node, 'kudos_projector.enabled' => 'on');
	wait_until($node, 'horde', "SELECT currency_rows >= $folded + 5 FROM kudos_projector_stats", "the worker folds, mallory having $login");
	gains_nothing("the worker, mallory having $login", 'index condition', @fold_vehicles);

	# A deferred trigger would fire in the commit: the superuser's, where he may not log in. There it is refused first,
	# and then fired at once, as him.
	as_superuser('SET ROLE mallory; CREATE CONSTRAINT TRIGGER c AFTER UPDATE ON kudos_ledger DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION evil.trigger(\'deferred\')');
	$folded = folded_rows();
	as('application', q{SELECT kudos_post(1, 1, 'AWARD')});
	wait_until($node, 'horde', "SELECT currency_rows > $folded FROM kudos_projector_stats", "a deferred trigger fires, mallory having $login");
	set_config($node, 'kudos_projector.enabled' => 'off');
	as_superuser('SET ROLE mallory; DROP TRIGGER c ON kudos_ledger');
	wait_until($node, 'horde', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = '$worker_type'", 'the worker stops');
	gains_nothing("the worker at its commit, mallory having $login");
}
$node->safe_psql('postgres', 'ALTER ROLE mallory LOGIN');

# --- The ledger is given to him while a cycle is under way that acts as the former owner

as('mallory', 'DROP TRIGGER a ON kudos_ledger; DROP TRIGGER b ON kudos_ledger; DROP INDEX kudos_ledger_id_idx; ALTER TABLE kudos_ledger DROP CONSTRAINT kudos_ledger_check');
as_superuser('ALTER TABLE kudos_ledger OWNER TO postgres; GRANT SELECT, INSERT, UPDATE, REFERENCES ON kudos_ledger TO mallory');
as('application', q{SELECT kudos_post(1, 1, 'AWARD')});
my $superuser = $node->background_psql('horde', on_error_stop => 0);
$superuser->query_safe('SELECT public.kudos_mode()'); # who knows the former owner
loot();
my $giver = hold($node, 'horde', q{ALTER TABLE public.kudos_ledger OWNER TO mallory; SET LOCAL ROLE mallory;
	CREATE TRIGGER a BEFORE UPDATE ON public.kudos_ledger FOR EACH ROW EXECUTE FUNCTION evil.trigger()});
$superuser->query_until(qr/asked/, "\\echo asked\nSELECT public.kudos_fold_now();\n");
wait_until($node, 'horde', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^SELECT public.kudos_fold_now' AND wait_event_type = 'Lock'}, 'a fold waits');
let_go($giver);
$superuser->query_until(qr/answered/, "\\echo answered\n");
$superuser->quit;
gains_nothing('a fold that began before the ledger was given away');
is(session_of('SELECT kudos_fold_now()'), $untouched, 'the next fold acts as the new owner');
gains_nothing('the next fold', 'BEFORE UPDATE kudos_ledger');

# The attacker also took rows of the counters away, and opened his hold anew: the rest must be right.
$node->safe_psql('horde', q{DROP SCHEMA evil CASCADE; CALL outside('users.kudos', '1', 1)});
is($node->safe_psql('horde', q{SELECT * FROM target_errors() WHERE target !~ '^(user_stats|worker_stats|user_records|kudos_reservations)'}), '', 'targets are right');
ends_well($node);
done_testing();
