; A pool of threads that shares out parallel loops: see farm/runtime/pool.py.
;
; One job at a time: the caller of @farm_launch works too, as worker 0. Workers take parts of the loop by adding to @next;
; the last one that finds nothing left posts @done. Whoever waits looks for a while, and lets others run on the core between
; two looks, before it sleeps: to wake a thread takes longer than many a loop.

%semaphore = type [64 x i8] ; sem_t, with room to spare

@threads = global i64 1
@wake = global [64 x %semaphore] zeroinitializer, align 64
@done = global %semaphore zeroinitializer, align 64
@handles = global [64 x i64] zeroinitializer
@scratch = global [64 x ptr] zeroinitializer
@scratch_size = global i64 0
@stopping = global i64 0
@patience = global i64 0 ; nanoseconds

@share = global ptr null
@env = global ptr null
@extent = global i64 0
@part = global i64 1
@next = global i64 0, align 64
@pending = global i64 0, align 64

declare i32 @sem_init(ptr, i32, i32)
declare i32 @sem_wait(ptr)
declare i32 @sem_trywait(ptr)
declare i32 @sem_post(ptr)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)

; Takes parts until none is left.
define internal void @work(i64 %me) {
entry:
  %share = load ptr, ptr @share
  %env = load ptr, ptr @env
  %extent = load i64, ptr @extent
  %part = load i64, ptr @part
  %at = getelementptr inbounds [64 x ptr], ptr @scratch, i64 0, i64 %me
  %scratch = load ptr, ptr %at
  br label %take
take:
  %begin = atomicrmw add ptr @next, i64 %part seq_cst
  %more = icmp slt i64 %begin, %extent
  br i1 %more, label %run, label %none
run:
  %after = add i64 %begin, %part
  %inside = icmp slt i64 %after, %extent
  %end = select i1 %inside, i64 %after, i64 %extent
  call void %share(ptr %env, ptr %scratch, i64 %begin, i64 %end)
  br label %take
none:
  ret void
}

; Returns the time in nanoseconds: CLOCK_MONOTONIC.
define internal i64 @now() {
entry:
  %time = alloca [2 x i64]
  %status = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %at = getelementptr inbounds [2 x i64], ptr %time, i64 0, i64 1
  %rest = load i64, ptr %at
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}

; Waits for a semaphore; looks for @patience before it sleeps.
define internal void @wait(ptr %semaphore) {
entry:
  %patience = load i64, ptr @patience
  %began = call i64 @now()
  br label %look
look:
  %count = phi i32 [ 0, %entry ], [ %next, %again ]
  %status = call i32 @sem_trywait(ptr %semaphore)
  %got = icmp eq i32 %status, 0
  br i1 %got, label %out, label %again
again:
  %next = add i32 %count, 1
  %more = icmp ult i32 %next, 64
  br i1 %more, label %look, label %pause
pause:
  %time = call i64 @now()
  %spent = sub i64 %time, %began
  %late = icmp sge i64 %spent, %patience
  br i1 %late, label %sleep, label %yield
yield:
  %yielded = call i32 @sched_yield()
  %tried = call i32 @sem_trywait(ptr %semaphore)
  %there = icmp eq i32 %tried, 0
  br i1 %there, label %out, label %pause
sleep:
  %slept = call i32 @sem_wait(ptr %semaphore)
  %woken = icmp eq i32 %slept, 0
  br i1 %woken, label %out, label %sleep
out:
  ret void
}

define internal ptr @worker(ptr %argument) {
entry:
  %me = ptrtoint ptr %argument to i64
  %own = getelementptr inbounds [64 x %semaphore], ptr @wake, i64 0, i64 %me
  br label %loop
loop:
  call void @wait(ptr %own)
  %stop = load atomic i64, ptr @stopping seq_cst, align 8
  %end = icmp ne i64 %stop, 0
  br i1 %end, label %out, label %job
job:
  call void @work(i64 %me)
  %before = atomicrmw sub ptr @pending, i64 1 seq_cst
  %last = icmp eq i64 %before, 1
  br i1 %last, label %tell, label %loop
tell:
  %told = call i32 @sem_post(ptr @done)
  br label %loop
out:
  ret ptr null
}

; Gives every thread at least `bytes` of scratch memory; returns whether it has.
define internal i1 @grow(i64 %bytes, i64 %threads) {
entry:
  %size = load i64, ptr @scratch_size
  %enough = icmp uge i64 %size, %bytes
  br i1 %enough, label %good, label %each
each:
  %me = phi i64 [ 0, %entry ], [ %next, %got ]
  %at = getelementptr inbounds [64 x ptr], ptr @scratch, i64 0, i64 %me
  %old = load ptr, ptr %at
  call void @free(ptr %old)
  store ptr null, ptr %at
  %status = call i32 @posix_memalign(ptr %at, i64 4096, i64 %bytes)
  %ok = icmp eq i32 %status, 0
  br i1 %ok, label %got, label %bad
got:
  %next = add i64 %me, 1
  %more = icmp ult i64 %next, %threads
  br i1 %more, label %each, label %grown
bad:
  store ptr null, ptr %at
  store i64 0, ptr @scratch_size
  ret i1 false
grown:
  store i64 %bytes, ptr @scratch_size
  br label %good
good:
  ret i1 true
}

; The launcher of the ABI.
define i32 @farm_launch(ptr %share, ptr %env, i64 %extent, i64 %bytes) {
entry:
  %threads = load i64, ptr @threads
  %enough = call i1 @grow(i64 %bytes, i64 %threads)
  br i1 %enough, label %set, label %refuse
refuse:
  ret i32 1
set:
  store ptr %share, ptr @share
  store ptr %env, ptr @env
  store i64 %extent, ptr @extent
  %slots = mul i64 %threads, 4
  %rounded = add i64 %extent, %slots
  %rest = sub i64 %rounded, 1
  %part = udiv i64 %rest, %slots
  store i64 %part, ptr @part
  store atomic i64 0, ptr @next seq_cst, align 8
  %fewer = icmp ult i64 %extent, %threads
  %workers = select i1 %fewer, i64 %extent, i64 %threads
  %others = sub i64 %workers, 1
  store atomic i64 %others, ptr @pending seq_cst, align 8
  %alone = icmp eq i64 %others, 0
  br i1 %alone, label %own, label %each
each:
  %me = phi i64 [ 1, %set ], [ %following, %each ]
  %semaphore = getelementptr inbounds [64 x %semaphore], ptr @wake, i64 0, i64 %me
  %posted = call i32 @sem_post(ptr %semaphore)
  %following = add i64 %me, 1
  %more = icmp ult i64 %following, %workers
  br i1 %more, label %each, label %own
own:
  call void @work(i64 0)
  br i1 %alone, label %out, label %join
join:
  call void @wait(ptr @done)
  br label %out
out:
  ret i32 0
}

; Starts threads 1 to before `threads`, which look for `patience` nanoseconds before they sleep; returns how many there are
; with the caller.
define i64 @farm_start(i64 %threads, i64 %patience) {
entry:
  store i64 %patience, ptr @patience
  %first = call i32 @sem_init(ptr @done, i32 0, i32 0)
  br label %each
each:
  %me = phi i64 [ 1, %entry ], [ %next, %started ]
  %more = icmp ult i64 %me, %threads
  br i1 %more, label %start, label %out
start:
  %semaphore = getelementptr inbounds [64 x %semaphore], ptr @wake, i64 0, i64 %me
  %made = call i32 @sem_init(ptr %semaphore, i32 0, i32 0)
  %handle = getelementptr inbounds [64 x i64], ptr @handles, i64 0, i64 %me
  %argument = inttoptr i64 %me to ptr
  %status = call i32 @pthread_create(ptr %handle, ptr null, ptr @worker, ptr %argument)
  %ok = icmp eq i32 %status, 0
  br i1 %ok, label %started, label %out
started:
  %next = add i64 %me, 1
  br label %each
out:
  store i64 %me, ptr @threads
  ret i64 %me
}

; Ends all threads and frees their memory; no job may run.
define void @farm_stop() {
entry:
  %threads = load i64, ptr @threads
  store atomic i64 1, ptr @stopping seq_cst, align 8
  br label %each
each:
  %me = phi i64 [ 0, %entry ], [ %next, %freed ]
  %more = icmp ult i64 %me, %threads
  br i1 %more, label %one, label %out
one:
  %caller = icmp eq i64 %me, 0
  br i1 %caller, label %freed, label %end
end:
  %semaphore = getelementptr inbounds [64 x %semaphore], ptr @wake, i64 0, i64 %me
  %posted = call i32 @sem_post(ptr %semaphore)
  %at_handle = getelementptr inbounds [64 x i64], ptr @handles, i64 0, i64 %me
  %handle = load i64, ptr %at_handle
  %joined = call i32 @pthread_join(i64 %handle, ptr null)
  br label %freed
freed:
  %at = getelementptr inbounds [64 x ptr], ptr @scratch, i64 0, i64 %me
  %memory = load ptr, ptr %at
  call void @free(ptr %memory)
  store ptr null, ptr %at
  %next = add i64 %me, 1
  br label %each
out:
  store i64 0, ptr @scratch_size
  ret void
}
