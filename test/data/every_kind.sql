-- Rows of every kind, with fractions, two that name nobody, a transfer, and holds. Needs the fixture, the extension,
-- and transfers.sql.
SELECT t_post(1, 0.40), t_post(2, -3.35), t_post(5, 0.49, true), t_ustat(1, 'accumulated', 0.35), t_rec(1, 'USAGE', 'image', 0.25),
	t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 0.15, '00000000-0000-0000-0000-0000000000a1'),
	t_contrib('00000000-0000-0000-0000-0000000000f1', 'contributions', 7.77, '00000000-0000-0000-0000-0000000000a1'),
	t_ustat(777, 'accumulated', 1, '00000000-0000-0000-0000-00000000aaaa'), t_ustat(778, 'accumulated', 1);
SELECT kudos_transfer(1, 2, 1.25, gen_random_uuid()::text);
SELECT kudos_reserve(1, 'upfront:' || n, 10.50) FROM generate_series(1, 3) n;
SELECT t_post(1, -4.25, false, gen_random_uuid(), '{"reservation_id": "upfront:1"}');
SELECT kudos_release('upfront:2');
