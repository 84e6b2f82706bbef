//! Who makes which value, and in which order the nodes behind an output can be computed.

use std::collections::HashMap;

use super::{Graph, Node, Tensor};

/// Why the names of a graph do not make a flow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// Two things have one name.
    #[error("two values of the graph are called `{name}`, wanted unique names")]
    Twice {
        /// The name.
        name: String,
    },
    /// A name that nothing makes.
    #[error("node `{node}` ({operator}) takes `{name}`, which no node of the graph computes")]
    Missing {
        /// The node.
        node: String,
        /// Its operator.
        operator: String,
        /// The name.
        name: String,
    },
    /// The graph has no such output.
    #[error("no node of the graph computes its output `{name}`")]
    Output {
        /// The name.
        name: String,
    },
    /// A value is made from itself.
    #[error("node `{node}` ({operator}) is part of a cycle")]
    Circle {
        /// The node.
        node: String,
        /// Its operator.
        operator: String,
    },
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'g> {
    /// The caller gives it.
    Input,
    /// It is a constant.
    Initializer(&'g Tensor),
    /// It is a constant that is stored as a sparse tensor.
    Sparse,
    /// An operator makes it: which node.
    Node(usize),
}

/// A graph with its names resolved.
#[derive(Debug)]
pub(crate) struct Flow<'g> {
    graph: &'g Graph,
    sources: HashMap<&'g str, Source<'g>>,
}

impl<'g> Flow<'g> {
    /// Resolves the names; every name must be made once.
    pub(crate) fn new(graph: &'g Graph) -> Result<Self, GraphError> {
        let mut sources: HashMap<&str, Source<'_>> = HashMap::new();
        for input in &graph.inputs {
            if sources.insert(&input.name, Source::Input).is_some() {
                return Err(GraphError::Twice { name: input.name.clone() });
            }
        }
        // An initialiser under the name of an input is that input's value unless a caller gives another.
        for tensor in &graph.initializers {
            let before = sources.insert(&tensor.name, Source::Initializer(tensor));
            if !matches!(before, None | Some(Source::Input)) {
                return Err(GraphError::Twice { name: tensor.name.clone() });
            }
        }
        let sparse = graph.sparse_initializers.iter().map(|name| (name, Source::Sparse));
        let nodes = graph
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(place, node)| node.outputs.iter().map(move |name| (name, Source::Node(place))));
        for (name, source) in sparse.chain(nodes).filter(|(name, _)| !name.is_empty()) {
            if sources.insert(name, source).is_some() {
                return Err(GraphError::Twice { name: name.clone() });
            }
        }
        Ok(Self { graph, sources })
    }

    /// Where the value of this name comes from.
    pub(crate) fn source(&self, name: &str) -> Option<Source<'g>> {
        self.sources.get(name).copied()
    }

    /// The nodes that the value of this name depends on, every node after those whose outputs it takes.
    ///
    /// What branches of a node take from outside counts as taken by the node.
    pub(crate) fn order(&self, output: &str) -> Result<Vec<usize>, GraphError> {
        let last = match self.source(output) {
            None => return Err(GraphError::Output { name: output.to_owned() }),
            Some(Source::Node(node)) => node,
            Some(Source::Input | Source::Initializer(_) | Source::Sparse) => return Ok(Vec::new()),
        };
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.graph.nodes.len()];
        let (mut order, mut stack) = (Vec::new(), vec![last]);
        while let Some(&place) = stack.last() {
            let node = &self.graph.nodes[place];
            if marks[place] != Mark::New {
                stack.pop();
                if marks[place] == Mark::Open {
                    marks[place] = Mark::Done;
                    order.push(place);
                }
                continue;
            }
            marks[place] = Mark::Open;
            let mut names: Vec<&str> = node.inputs.iter().map(String::as_str).collect();
            node.subgraphs().for_each(|graph| taken(graph, &mut names));
            for name in names.into_iter().filter(|name| !name.is_empty()) {
                match self.source(name) {
                    Some(Source::Node(before)) => match marks[before] {
                        Mark::New => stack.push(before),
                        Mark::Open => return Err(circle(&self.graph.nodes[before])),
                        Mark::Done => {}
                    },
                    Some(Source::Input | Source::Initializer(_) | Source::Sparse) => {}
                    None if node.inputs.iter().any(|input| input == name) => {
                        return Err(GraphError::Missing {
                            node: node.label().to_owned(),
                            operator: node.operator.clone(),
                            name: name.to_owned(),
                        });
                    }
                    // Made inside the branch.
                    None => {}
                }
            }
        }
        Ok(order)
    }
}

fn circle(node: &Node) -> GraphError {
    GraphError::Circle { node: node.label().to_owned(), operator: node.operator.clone() }
}

/// Every name that the nodes and outputs of a branch mention.
fn taken<'g>(graph: &'g Graph, names: &mut Vec<&'g str>) {
    names.extend(graph.outputs.iter().map(|output| output.name.as_str()));
    for node in &graph.nodes {
        names.extend(node.inputs.iter().map(String::as_str));
        node.subgraphs().for_each(|graph| taken(graph, names));
    }
}
