//! Graphs, as captures record them, and their replay.

use std::sync::{Arc, Condvar, Mutex};

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream};

use crate::call::{driver_calls, put};
use crate::context::{self, Context};
use crate::registry::{Registry, lock};
use crate::stream::{self, Operation, Stream};

pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) operation: Operation,
    /// The nodes that it waits for.
    pub(crate) behind: Vec<usize>,
}

pub(crate) struct Executable {
    nodes: Vec<Node>,
    /// It does not run beside itself.
    turn: Mutex<()>,
}

pub(crate) static GRAPHS: Registry<Graph> = Registry::new(5);
pub(crate) static EXECUTABLES: Registry<Executable> = Registry::new(6);

/// Runs all nodes, each when those before it are done, side by side where nothing orders them.
pub(crate) fn replay(executable: &Executable, context: &Arc<Context>) {
    let _turn = lock(&executable.turn);
    let done = Mutex::new(vec![false; executable.nodes.len()]);
    let changed = Condvar::new();
    std::thread::scope(|scope| {
        for (number, node) in executable.nodes.iter().enumerate() {
            let (done, changed) = (&done, &changed);
            scope.spawn(move || {
                let mut seen = lock(done);
                while node.behind.iter().any(|before| !seen[*before]) {
                    seen = changed.wait(seen).unwrap_or_else(|broken| broken.into_inner());
                }
                drop(seen);
                stream::execute(&node.operation, context, || {});
                lock(done)[number] = true;
                changed.notify_all();
            });
        }
    });
}

driver_calls! {
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let graph = GRAPHS.find(graph as usize)?;
        if !nodes.is_null() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        put(count, graph.nodes.len())
    }

    fn cuGraphInstantiateWithFlags(out: *mut CUgraphExec, graph: CUgraph, _flags: u64) {
        let nodes = GRAPHS.find(graph as usize)?.nodes.clone();
        context::may_wait()?;
        put(out, EXECUTABLES.add(Arc::new(Executable { nodes, turn: Mutex::new(()) })) as CUgraphExec)
    }

    fn cuGraphUpload(executable: CUgraphExec, stream: CUstream) {
        EXECUTABLES.find(executable as usize)?;
        Stream::find(stream).map(drop)
    }

    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) {
        let executable = EXECUTABLES.find(executable as usize)?;
        Stream::find(stream)?.push(Operation::Graph(executable))
    }

    fn cuGraphExecDestroy(executable: CUgraphExec) {
        EXECUTABLES.remove(executable as usize).map(drop)
    }

    fn cuGraphDestroy(graph: CUgraph) {
        GRAPHS.remove(graph as usize).map(drop)
    }
}
