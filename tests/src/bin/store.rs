//! One operation on a store, with the credentials of this process's environment:
//! `store URL get KEY`, `store URL put KEY TEXT`, `store URL list PREFIX`, `store URL probe`.

use std::process::ExitCode;

use training_gym_core::store::{self, Error};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match operate(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            if let Error::Remote { fault, .. } = &error {
                println!("{:?}", fault.kind);
            }
            println!("{}", training_gym_core::chain(&error));
            ExitCode::FAILURE
        }
    }
}

async fn operate(arguments: &[&str]) -> Result<String, Error> {
    let url = arguments.first().copied().unwrap_or_default();
    let store = store::open(url)?;
    match arguments {
        [_, "get", key] => Ok(String::from_utf8_lossy(&store.get(key).await?.bytes).into_owned()),
        [_, "put", key, text] => store.put(key, (*text).to_owned().into()).await.map(|_| "written".to_owned()),
        [_, "list", prefix] => {
            let found = store.list(prefix).await?;
            Ok(found.into_iter().map(|object| object.key).collect::<Vec<_>>().join("\n"))
        }
        [_, "probe"] => {
            let steps = store::probe(&*store).await;
            Ok(steps.iter().map(|step| format!("{}: {:?}", step.name, step.outcome)).collect::<Vec<_>>().join("\n"))
        }
        _ => Err(Error::Invalid {
            what: "arguments",
            given: arguments.join(" "),
            rule: "URL get KEY | URL put KEY TEXT | URL list PREFIX | URL probe".to_owned(),
        }),
    }
}
