/* stencil: heat spreads over a square plate. Each cell takes the mean of its neighbours.
 *
 *	margay run -n 4 bin/stencil [STEPS]
 *
 * The ranks share the plate in rows and columns. Each rank is in two groups, its row and its
 * column. In each step it starts to exchange the edges of its part with both, computes the cells
 * that do not depend on them, waits, and computes the rest. An all-reduce finds the largest change,
 * and is complete a step later. */
#include <err.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "margay.h"

#define SIDE 240 /* cells of the plate */
#define WAIT 60000

/* A rank's part of the plate, with the cells around it. */
static int rows, columns;   /* of ranks */
static int height, width;   /* of the part */
static double *now, *after; /* (height + 2) x (width + 2) cells */

static double *cell(double *plate, int y, int x) { return &plate[y * (width + 2) + x]; }

static void check(int result)
{
	if (result < 0)
		errx(1, "%s", margay_error());
}

/* finish waits for a call that was started. */
static void finish(margay_request *request)
{
	int done = margay_request_wait(request, WAIT);
	check(done);
	if (!done)
		errx(1, "no answer in a minute");
}

static double *numbers(size_t count)
{
	double *d = calloc(count, sizeof *d);
	if (!d)
		err(1, "memory");
	return d;
}

/* spread computes some cells of the next step, and returns the largest change, or that before. */
static double spread(int top, int bottom, int left, int right, double largest)
{
	for (int y = top; y <= bottom; y++)
		for (int x = left; x <= right; x++) {
			double mean = (*cell(now, y - 1, x) + *cell(now, y + 1, x) + *cell(now, y, x - 1) + *cell(now, y, x + 1)) / 4;
			*cell(after, y, x) = mean;
			largest = fmax(largest, fabs(mean - *cell(now, y, x)));
		}
	return largest;
}

/* The edges of the ranks of a group: of each rank two, that towards the rank before it first. */
struct edges {
	margay_group group;
	int length;
	double *own, *all;
	margay_request request;
};

static struct edges new_edges(int colour, int key, int length)
{
	struct edges e = {.length = length, .own = numbers(2 * length)};
	check(margay_group_split(MARGAY_WORLD, colour, key, &e.group, WAIT));
	e.all = numbers((size_t)2 * length * margay_group_size(e.group));
	return e;
}

static void start(struct edges *e)
{
	check(margay_group_allgather_nb(e->group, e->own, 2 * e->length * sizeof *e->own, e->all, &e->request));
}

/* edge returns the edge of a neighbour next to this rank's, NULL at the end of the plate. */
static const double *edge(const struct edges *e, int step)
{
	int place = margay_group_rank(e->group) + step;
	if (place < 0 || place >= margay_group_size(e->group))
		return NULL;
	return e->all + (2 * place + (step < 0)) * e->length;
}

/* take puts the edges of the neighbours around this rank's part. */
static void take(const struct edges *row, const struct edges *column)
{
	for (int side = 0; side < 2; side++) {
		const double *beside = edge(row, side ? 1 : -1), *above = edge(column, side ? 1 : -1);
		for (int y = 1; beside && y <= height; y++)
			*cell(now, y, side ? width + 1 : 0) = beside[y - 1];
		if (above)
			memcpy(cell(now, side ? height + 1 : 0, 1), above, width * sizeof *above);
	}
}

/* step computes a step and returns the largest change. */
static double step(struct edges *row, struct edges *column)
{
	for (int y = 1; y <= height; y++) {
		row->own[y - 1] = *cell(now, y, 1);
		row->own[height + y - 1] = *cell(now, y, width);
	}
	memcpy(column->own, cell(now, 1, 1), width * sizeof *now);
	memcpy(column->own + width, cell(now, height, 1), width * sizeof *now);
	start(row);
	start(column);
	double largest = spread(2, height - 1, 2, width - 1, 0);
	finish(&row->request);
	finish(&column->request);
	take(row, column);
	largest = spread(1, 1, 1, width, largest);
	largest = spread(height, height, 1, width, largest);
	largest = spread(2, height - 1, 1, 1, largest);
	return spread(2, height - 1, width, width, largest);
}

int main(int argc, char **argv)
{
	int steps = argc > 1 ? atoi(argv[1]) : 500, done = 0;
	check(margay_init());
	for (rows = sqrt(margay_size()); margay_size() % rows; rows--)
		;
	columns = margay_size() / rows;
	height = SIDE / rows;
	width = SIDE / columns;
	if (SIDE % rows || SIDE % columns || height < 2 || width < 2)
		errx(1, "%d ranks cannot share %d cells", margay_size(), SIDE);
	int y = margay_rank() / columns, x = margay_rank() % columns;
	struct edges row = new_edges(y, x, height), column = new_edges(x, y, width);
	now = numbers((height + 2) * (width + 2));
	after = numbers((height + 2) * (width + 2));
	if (y == 0) /* the upper end is hot */
		for (int i = 0; i < width + 2; i++)
			*cell(now, 0, i) = *cell(after, 0, i) = 100;

	double change, largest = INFINITY;
	margay_request request = 0;
	while (done < steps) {
		double own = step(&row, &column);
		finish(&request);
		if (largest < 0.01) /* in the step before: all ranks have the same number */
			break;
		change = own;
		check(margay_group_allreduce_nb(MARGAY_WORLD, &change, &largest, 1, MARGAY_FLOAT64, MARGAY_MAX, &request));
		double *next = after;
		after = now;
		now = next;
		done++;
	}
	finish(&request);
	double heat = 0, sum;
	for (int i = 1; i <= height; i++)
		for (int k = 1; k <= width; k++)
			heat += *cell(now, i, k);
	check(margay_allreduce(&heat, &sum, 1, MARGAY_FLOAT64, MARGAY_SUM, WAIT));
	if (margay_rank() == 0)
		printf("%d x %d ranks: after %d steps the mean is %.4f degrees, and the largest change %.4f\n", rows, columns, done, sum / SIDE / SIDE, largest);
	check(margay_group_free(&row.group));
	check(margay_group_free(&column.group));
	return margay_finalize(WAIT) != 0;
}
